"""`bandpo doctor`: reads settings, scripts and logs, and hands them to the checks of `bandpo.doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.doctor import Finding
from bandpo.doctor.installed import installation, plug_in
from bandpo.doctor.on_trl import is_of_trl, trl_settings
from bandpo.doctor.on_verl import ABSENT, ADDED, LOSS, setting, verl_settings
from bandpo.errors import UserError
from bandpo.files import checked, parse_yaml, read_yaml

from .doctor_logs import logged
from .doctor_scripts import script_settings


def read_config(arguments: Sequence[str]) -> dict[str, Any]:
    """Read nested settings from YAML files and `key=value` overrides (a leading + or ++ is Hydra's), later ones win.

    Raises:
        UserError: a file that holds no settings by name.
    """
    config: dict[str, Any] = {}
    for text in arguments:
        if "=" in text and not Path(text).exists():
            key, _, value = text.partition("=")
            more = parse_yaml(value, f"the value of {key}")
            for part in reversed(key.lstrip("+").split(".")):
                more = {part: more}
        else:
            more = checked(read_yaml(Path(text)), dict[str, Any], text)
        config = _merged(config, more)
    return config


def _merged(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        key: _merged(known, value)
        for key, value in more.items()
        if isinstance(value, Mapping) and isinstance(known := config.get(key), Mapping)
    }
    return {**config, **more, **inner}


def _refused_by_hydra(arguments: Sequence[str]) -> Iterator[Finding]:
    """List our keys without a + that no given file has already."""
    there = read_config([text for text in arguments if Path(text).exists()])
    for text in arguments:
        key, equals, _ = text.partition("=")
        name = key.removeprefix(f"{LOSS}.").partition(".")[0]
        if equals and key.startswith("+"):
            there = _merged(there, read_config([text]))
        elif equals and key.startswith(f"{LOSS}.") and name in ADDED and setting(there, key) is ABSENT:
            what = f"{key} without a + in front: verl's own settings have no such key, and Hydra ends the run"
            yield Finding("problem", what, f"'+{text}'")


def examine(arguments: Sequence[str], *, ray: bool = True, trust: bool = False) -> Iterator[Finding]:
    """Examine the installation without arguments.

    Arguments name logs (.jsonl, trainer_state.json), a script or settings. A script is .py; settings are what files and
    overrides add up to, of verl or of TRL. With `trust`, the module of a user's rule is imported.

    Raises:
        UserError: a file that is none of them, or cannot be read.
    """
    if not arguments:
        yield from installation()
        yield from plug_in(ray)
        return
    logs = [text for text in arguments if text.endswith((".jsonl", "trainer_state.json"))]
    for text in logs:
        yield from logged(Path(text))
    scripts = [text for text in arguments if text.endswith(".py")]
    if len(scripts) > 1:
        raise UserError(f"one script at a time, got {', '.join(scripts)}")
    settings = read_config([text for text in arguments if text not in (*logs, *scripts)])
    if scripts:
        known, unknown, rule, said = script_settings(Path(scripts[0]), settings.keys())
        yield from said
        yield from trl_settings({**known, **settings}, unknown, rule, trust=trust)
    elif "actor_rollout_ref" not in settings and is_of_trl(settings):
        yield from trl_settings(settings, trust=trust)
    elif len(logs) < len(arguments):
        yield from _refused_by_hydra(arguments)
        yield from verl_settings(settings, trust=trust)
