"""The command ``vm``: a machine to try by hand, with a backend in it; the verbs are those of `durabench_vm.session`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import durabench_vm as vm
from durabench import schedule
from durabench.guest import DISK_BYTES, SERVER_USER, parse_filesystem, root_spec
from durabench_vm import session as person

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durabench.service import Target
    from durabench_backends.contract import Command

FIRST_PORT = 15000


def session_commands(target: Target, filesystem: str | None) -> person.Commands:
    """What ``vm/up`` puts into a machine for a person: a target's programs, its daemons, the URL to reach them."""
    found, setting = target.load()
    if setting is None:
        message = f"{target.label} is somebody's; a machine is made with one of ours"
        raise schedule.UsageError(message)
    ports: dict[str, int] = {}
    commands = found(
        setting, Path(vm.Guest.root), lambda name: ports.setdefault(name, FIRST_PORT + len(ports))
    ).commands()
    parsed, unit_bytes = parse_filesystem(filesystem)
    spec = root_spec([target])
    form = getattr(found, "url_form", None)
    say = [f"{target.label} answers at {form.replace('{server}', f'{{{port}}}')}" for port in ports.values() if form]
    if not ports:
        say = [
            f"{target.label} is a store in files: vm/shell opens a shell in {vm.Guest.root}, on the disk that is cut"
        ]
    return person.Commands(
        trees=tuple(str(tree.path) for tree in spec.trees),
        binaries=tuple(str(path) for path in spec.binaries),
        setup=tuple(_order(command) for command in commands if command.role == "setup"),
        daemons=tuple(_order(command) for command in commands if command.role == "daemon"),
        forward=tuple(ports.values()),
        say=tuple(say),
        filesystem=str(parsed),
        size_mib=DISK_BYTES[parsed.name] >> 20,
        unit_bytes=unit_bytes,
        user=SERVER_USER,
    )


def main(arguments: Sequence[str]) -> int:
    """``vm VERB …``: the machine's own commands; with ``--backend NAME:SETTING``, what that backend needs in it."""
    words = list(arguments)
    if words[:1] == ["up"] and {"-h", "--help"} & set(words):
        print("--backend NAME:SETTING  have that backend in the machine, and its URL printed; beside these options:\n")
    names = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--backend"]
    if not names:
        return person.main(words)
    at = words.index("--backend")
    del words[at : at + 2]
    targets = schedule.targets_of(names[0])
    if len(names) > 1 or len(targets) != 1:
        message = "a machine holds one setting: --backend NAME:SETTING"
        raise schedule.UsageError(message)
    filesystem = words[words.index("--filesystem") + 1] if "--filesystem" in words[:-1] else None
    with tempfile.NamedTemporaryFile("w", prefix="durabench-vm-", suffix=".json") as file:
        file.write(session_commands(targets[0], filesystem).write())
        file.flush()
        return person.main([*words, "--commands", file.name])


def _order(command: Command) -> person.Order:
    return person.Order(
        tuple(command.argv), dict(command.env), command.stdin.decode(), dict(command.files), SERVER_USER
    )
