"""`posttrain completion`: print a shell script that completes commands, options and names of runs."""

from __future__ import annotations

from argparse import REMAINDER, Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Sequence

from posttrain.errors import PosttrainError
from posttrain.pipeline.commands.line import DOES, parser

EXAMPLE = "bash >> ~/.bashrc"
SCRIPTS = {
    "bash": """_posttrain() {
    local IFS=$'\\n'
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=($(posttrain completion bash "${words[@]}" 2>/dev/null))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//@}
complete -o default -F _posttrain posttrain""",
    "zsh": """_posttrain() {
    local asked=("${(@)words[2,CURRENT]}")
    local found=(${(f)"$(posttrain completion zsh "${asked[@]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _posttrain posttrain""",
}
NAMES = ("NAME", "POLICY", "RUN", "WHAT")
"""The names, in help texts, of arguments that take a policy or a run."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: a shell."""
    parser.add_argument("shell", choices=list(SCRIPTS), help="print the script for this shell")
    parser.add_argument(
        "words", nargs=REMAINDER, metavar="[WORD]", help="the words to complete; the script passes them"
    )


def run(arguments: Namespace) -> str:
    """Return the script, or the completions of the last word."""
    return "\n".join(completions(arguments.words)) if arguments.words else SCRIPTS[arguments.shell]


def completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of these words."""
    *before, last = words
    if not before:
        return [name for name in DOES if name.startswith(last)]
    command = parser(before[0] if before[0] in DOES else None)
    for word in before:
        groups = (action for action in command._actions if isinstance(action, _SubParsersAction))
        command = next((group.choices[word] for group in groups if word in group.choices), command)
    options = {name: action for action in command._actions for name in action.option_strings}
    if last.startswith("-"):
        candidates = list(options)
    elif (option := options.get(before[-1])) and option.nargs != 0:
        candidates = _values(option)
    else:
        candidates = [value for action in command._actions if not action.option_strings for value in _values(action)]
    return [value for value in candidates if value.startswith(last)]


def _values(action: Action) -> list[str]:
    """Return the possible values of an argument, as far as they can be listed."""
    if action.choices:
        return list(action.choices)
    if action.metavar == "TOPIC":
        from posttrain.pipeline.commands.params.stored import names

        return names()
    from posttrain.pipeline.lock.graph import Pipeline

    try:
        pipeline = Pipeline()
    except PosttrainError:  # not in a project, or its files cannot be read: nothing is completed
        return []
    if action.metavar == "STAGE":
        return list(pipeline.stages)
    if action.metavar == "TABLE":
        tables = {dep for stage in pipeline.stages.values() for dep in stage.deps if dep.startswith("data/")}
        return sorted(table.removeprefix("data/").removesuffix(".parquet") for table in tables)
    models = [out.removeprefix("models/") for out in pipeline.makers if out.startswith("models/")]
    labels = [stage.partition("@")[2] for stage in pipeline.stages if stage.startswith("evaluate@")]
    return models if action.metavar == "MODEL" else [*labels, *models] if action.metavar in NAMES else []
