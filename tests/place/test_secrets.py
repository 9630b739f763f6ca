"""A clone, or a restore elsewhere, comes without the secrets of its sinks: they are given anew."""

from __future__ import annotations

from pathlib import Path

import orjson

from strandline import create
from strandline.lake import Lake
from tests.acceptance.test_sink_config import write
from tests.kit import call, make_table, strand_json

SECTION = '\n[sinks.other]\ntype = "forward"\nurl = "http://127.0.0.1:10"\ntoken = "xyz"\n'


def test_f69_sinks_of_a_clone_get_their_secrets_anew(tmp_path: Path) -> None:
    """The command that is named where one is missing works; a section whose secret is gone keeps no sink waiting."""
    root, clone = tmp_path / "lake", tmp_path / "clone"
    with create.create(root) as lake:
        make_table(lake)
        lake.add_sink("central", "forward", {"url": "http://127.0.0.1:9", "token": "abc"}, check=False)
        write(root, (root / "strand.toml").read_text() + SECTION)
        assert len(lake.sinks()) == 2
    assert call("--json", "clone", root, clone).code == 0
    assert not (clone / "secrets").exists(), "a clone has secrets of its own alone"
    ticked = {tick["sink"]: tick["outcome"] for tick in call("--lake", clone, "--json", "sink", "tick").json}
    assert ticked == {"central": "paused", "other": "paused"}
    strand_json(clone, "sink", "set", "central", "--set", "token=new")
    with Lake(clone) as lake:
        central = next(sink for sink in lake.sinks() if sink.name == "central")
        assert orjson.loads((clone / central.settings["secret_file"]).read_bytes()) == {"token": "new"}


def test_f69_a_section_that_has_not_become_a_sink_does_not_send_from_a_clone(tmp_path: Path) -> None:
    """Nothing could pause it; those that are sinks stay sections, and are paused."""
    root, clone = tmp_path / "lake", tmp_path / "clone"
    with create.create(root) as lake:
        make_table(lake)
        write(root, (root / "strand.toml").read_text() + SECTION)
        assert [sink.name for sink in lake.sinks()] == ["other"]
    later = (
        SECTION.replace("[sinks.other]", '[ sinks."later" ] # soon')
        + "tables = [\n  'messages',\n]\n\n[worker]\nattempts = 3\n"
    )
    write(root, (root / "strand.toml").read_text().replace("[worker]\n", "") + later)
    assert call("--json", "clone", root, clone).code == 0
    text = (clone / "strand.toml").read_text()
    assert "\n[sinks.other]" in text and "\n# [sinks.later]\n" in text and '\n# tables = ["messages"]\n' in text
    assert {ticked["sink"]: ticked["outcome"] for ticked in call("--lake", clone, "--json", "sink", "tick").json} == {
        "other": "paused"
    }
    with Lake(clone) as made:
        assert made.config.worker.attempts == 3
