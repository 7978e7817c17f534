"""``kerolox completion``: the script by which a shell completes commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kerolox.cli.grouping import COMPLETION_VARIABLE, Command
from kerolox.cli.output import RAW, print_line
from kerolox.cli.shells import add_shells

PROGRAM = "kerolox"


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and values in SHELL.

    Topics, groups, brokers and accounts are those of the cluster that the line names.

    \b
      bash: eval "$(kerolox completion bash)" in ~/.bashrc
      zsh:  eval "$(kerolox completion zsh)" in ~/.zshrc
      fish: kerolox completion fish > ~/.config/fish/completions/kerolox.fish
    """
    add_shells()
    made = get_completion_class(shell)
    assert made is not None
    whole = click.get_current_context().find_root().command
    print_line(made(whole, {}, PROGRAM, COMPLETION_VARIABLE).source().rstrip("\n"), RAW)
