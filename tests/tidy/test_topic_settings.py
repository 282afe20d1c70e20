"""docs/operating.md says of every setting of a topic what it is."""

from __future__ import annotations

import os

from oncelog_server.partition_leader.topic_configs import CONFIGS
from tests.tidy.test_deploy import ROOT

PAGE = ROOT / "docs" / "operating.md"
BEGIN = "### Settings of a topic\n"
HEAD = "| setting | default | what |\n| --- | --- | --- |\n"
END = "<!-- end of topic settings -->"


def test_the_page_has_every_setting_of_a_topic_as_the_code_has_it() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    said, _, rest = rest.partition(HEAD)
    _, _, after = rest.partition(END)
    lines = [
        f"| `{name}` | {config.default} | {config.meaning[0].upper()}{config.meaning[1:]}. |\n"
        for name, config in sorted(CONFIGS.items())
    ]
    wanted = "".join([before, BEGIN, said, HEAD, *lines, END, after])
    if os.environ.get("ONCELOG_REWRITE"):
        PAGE.write_text(wanted)
    assert wanted == text, f"ONCELOG_REWRITE=1 pytest {__file__}"
