"""A picture of the live view: an SVG that looks the same everywhere, and fetches nothing."""

import io
from typing import Final

from rich.console import Console, RenderableType

WIDTH: Final = 100
HEIGHT: Final = 32
"""Of every picture, in characters, whatever the terminal is like."""
FONTS: Final = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
ASPECT: Final = 0.602
"""Width by height of a character of the first two fonts; in others, letters are set apart or together to fit."""

# As rich's own template, without fonts from another host.
_FORMAT: Final = f"""<svg viewBox="0 0 {{width}} {{height}}" xmlns="http://www.w3.org/2000/svg">
<style>
.{{unique_id}}-matrix {{{{ font-family: {FONTS}; font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
.{{unique_id}}-title {{{{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}}}
{{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal"><rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}"/></clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""


def svg(view: RenderableType, title: str) -> str:
    """The picture of a view that was made for `WIDTH` and `HEIGHT`."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    blank = HEIGHT - len(console.render_lines(view, pad=False))
    console.print(view)
    console.print("\n" * (blank - 1) if blank > 1 else "", end="\n" if blank > 0 else "")
    return console.export_svg(title=title, code_format=_FORMAT, font_aspect_ratio=ASPECT, unique_id="parley")
