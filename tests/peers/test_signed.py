"""What an agent of ours signs is the same to published peers: they read neither the header nor anything else in another way."""

import json
from pathlib import Path
from uuid import UUID

from hosting.client import Answered, HttpClient
from hosting.signed_link import OF_AGENT, SignedLink
from hosting.signing import HEADER, Secret
from tests.peers.published_informant import PublishedInformant
from tests.peers.support import BareAgent, informant_knobs, running
from tests.support.waiting import until


async def test_a_published_informant_takes_signed_requests(tmp_path: Path) -> None:
    peer, agent = PublishedInformant(informant_knobs()), BareAgent()
    file = tmp_path / "secret"
    file.write_text(Secret(b"s" * 32).written())
    file.chmod(0o600)
    signed = SignedLink(file, OF_AGENT)
    async with running(peer, agent), HttpClient() as client:

        async def ask(method: str, path: str, body: bytes) -> Answered:
            headers = signed.headers(UUID(agent.id), method, path, body)
            assert HEADER in headers
            url = f"http://{peer.address}{path}"
            outcome = await client.call(method, url, body=body, deadline_s=20, headers=headers)
            assert isinstance(outcome, Answered)
            return outcome

        answer = await ask("POST", "/register", agent.desc)
        assert (answer.status, json.loads(answer.body)["protoVersion"]) == (200, 2)
        await until(lambda: peer.current_id == agent.id)
        assert (await ask("PUT", "/upscale", b'{"cpu": "1", "memory": "1Gi"}')).status == 200
        assert (await ask("DELETE", "/unregister", agent.desc)).status == 200
