"""``rune tools`` and the tools in ``rune ask``, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

from cli_helpers import Rune
from plugin_helpers import WEATHER, install


def test_the_list_says_what_is_offered_and_why_not(rune: Rune) -> None:
    found = rune.json("tools", "list")
    rows = {row["name"]: row for row in found["tools"]}
    assert found["problems"] == [] and len(rows) == 11
    assert [name for name, row in rows.items() if row["offered"]] == [
        *("read_file", "list_files", "search_text", "write_file", "edit_file", "run_command", "remember", "recall"),
    ]
    assert rows["write_file"]["approval"] and not rows["write_file"]["approved"]
    assert rows["http_get"]["why_not"] == "unless RUNE_HTTP_GET=1"
    assert rows["relate"]["why_not"] == "it is off by default"
    shown = rune("tools", "show", "write_file").stdout
    assert "asks first" in shown
    assert all(row["from"] == "rune" and 50 < row["tokens"] < 160 and row["timeout_s"] > 0 for row in rows.values())
    table = rune("tools", "list", COLUMNS="200")
    assert table.returncode == 0 and table.stderr == ""
    assert "search_text" in table.stdout and "no: it is off by default" in table.stdout


def test_settings_decide(rune: Rune) -> None:
    env = {"RUNE_AUTO_APPROVE": "write_file,http_get", "RUNE_HTTP_GET": "1", "RUNE_MEMORY_OFF": "1"}
    rows = {row["name"]: row for row in rune.json("tools", "list", **env)["tools"]}
    assert rows["write_file"]["offered"] and rows["write_file"]["approved"] and rows["http_get"]["offered"]
    assert not rows["recall"]["offered"] and rows["recall"]["why_not"] == "while memory is off"
    rune.home.mkdir(exist_ok=True)
    (rune.home / "config.toml").write_text('tools = ["relate"]\nrun_command_timeout_s = 7\n')
    rows = {row["name"]: row for row in rune.json("tools", "list")["tools"]}
    assert [name for name, row in rows.items() if row["offered"]] == ["relate"]
    assert rows["read_file"]["why_not"] == "the settings leave it out" and rows["run_command"]["timeout_s"] == 7


def test_one_tool_with_its_schema(rune: Rune) -> None:
    row = rune.json("tools", "show", "read_file")
    assert row["schema"]["function"]["parameters"]["required"] == ["path"]
    text = rune("tools", "show", "run_command", COLUMNS="120").stdout
    assert "time limit" in text and "60 s" in text and '"name": "run_command"' in text
    error = rune.json("tools", "show", "nothing", code=2)["error"]
    assert error["type"] == "InvalidInput" and "find_capability" in error["message"]


def test_tools_of_packages_and_packages_that_are_broken(rune: Rune, tmp_path: Path) -> None:
    install(tmp_path / "p", "weather-tools", {"weather": "weather_of_rune"}, weather_of_rune=WEATHER)
    install(tmp_path / "p", "bad-tools", {"bad": "bad_of_rune"}, bad_of_rune="raise ValueError('no \\x1b[31m luck')")
    rune.env["PYTHONPATH"] = str(tmp_path / "p")
    found = rune.json("tools", "list")
    rows = {row["name"]: row for row in found["tools"]}
    assert rows["weather"]["from"] == "weather-tools" and rows["weather"]["offered"] and rows["make_rain"]["offered"]
    (problem,) = found["problems"]
    assert (problem["plugin"], problem["value"]) == ("bad", "bad_of_rune") and "luck" in problem["error"]
    table = rune("tools", "list")
    assert table.returncode == 0 and "plug-in bad has no tools here: ValueError: no" in table.stderr
    assert "\x1b" not in table.stderr
    assert rune.json("tools", "show", "weather")["from"] == "weather-tools"


def test_the_doctor_says_what_of_the_tools_cannot_be_meant(rune: Rune, tmp_path: Path) -> None:
    def checks(**env: str) -> list[tuple[str, bool, str]]:
        done = rune("doctor", "--json", **env)
        found = json.loads(done.stdout)["checks"]
        assert (done.returncode == 3) is any(check["ok"] is False for check in found)
        return [(c["check"], c["ok"], c["says"]) for c in found if c["check"].startswith("tools")]

    (well,) = checks(RUNE_WORKSPACE=str(tmp_path), RUNE_AUTO_APPROVE="write_file")
    assert well == ("tools", True, f"8 of 11 are offered, in {tmp_path}; without asking: write_file")
    (gone,) = checks(RUNE_WORKSPACE=str(tmp_path / "absent"))
    assert gone[1] is False and "is no folder" in gone[2]
    install(tmp_path / "p", "bad-tools", {"bad": "bad_of_rune"}, bad_of_rune="raise ValueError('no luck')")
    found = checks(PYTHONPATH=str(tmp_path / "p"), RUNE_TOOLS="read_fil, recall", RUNE_WORKSPACE=str(tmp_path))
    assert found[1:] == [
        ("tools of bad-tools", False, "plug-in bad: ValueError: no luck"),
        ("tools", False, "RUNE_TOOLS names read_fil, of which there is no tool"),
    ]
