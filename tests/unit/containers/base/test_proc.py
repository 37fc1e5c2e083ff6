"""What is reported of a tool that failed."""

from __future__ import annotations

from fairlead_build.base.proc import tool_failed


def test_command_line_of_a_thousand_names_does_not_hide_the_reason() -> None:
    text = f"no such user\nE: setup failed: apt-get install {'package ' * 1000}failed\n"
    (finding,) = tool_failed(["mmdebstrap"], 25, text, "unpack", "again").findings
    assert "no such user" in finding.why and len(finding.why) < 1000
