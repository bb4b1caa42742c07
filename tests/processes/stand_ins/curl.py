"""`curl` for documents, on machines that have none: `-s`, `-f`, `-X`, `-d`, `-H`, `-i`, `--retry N`, `--retry-delay S`, `--retry-connrefused`."""

import sys
import time
import urllib.error
import urllib.request

SWITCHES = {"-s", "-f", "-sf", "-i", "-si", "--retry-connrefused"}
VALUED = {"-X", "-d", "-H", "--retry", "--retry-delay"}


def main(arguments: list[str]) -> int:
    """Print what curl would print, and return its exit code."""
    switches: set[str] = set()
    values: dict[str, str] = {}
    headers: dict[str, str] = {}
    address = ""
    rest = iter(arguments)
    for argument in rest:
        if argument in SWITCHES:
            switches.add(argument)
        elif argument == "-H":
            name, _, value = next(rest).partition(":")
            headers[name] = value.strip()
        elif argument in VALUED:
            values[argument] = next(rest)
        else:
            assert not argument.startswith("-"), f"{argument} is not known to this stand-in"
            address = argument if "://" in argument else f"http://{argument}"
    data = values["-d"].encode() if "-d" in values else None
    request = urllib.request.Request(address, data, headers, method=values.get("-X"))
    for left in range(int(values.get("--retry", "0")), -1, -1):
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, told, body = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, told, body = error.code, error.headers, error.read()
        except OSError:
            if not left:
                return 7
            time.sleep(float(values.get("--retry-delay", "1")))
            continue
        if status >= 400 and switches & {"-f", "-sf"}:
            return 22
        if switches & {"-i", "-si"}:
            sys.stdout.write(f"HTTP/1.1 {status}\n{told}")
            sys.stdout.flush()  # what follows goes below the text layer
        sys.stdout.buffer.write(body)
        return 0
    return 7


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
