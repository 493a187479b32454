"""The command line: `tracewords COMMAND ...`.

Exit status 0: fine; 1: a check failed or a run had to stop; 2: the input is wrong, said in one line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tracewords import __version__
from tracewords.cli_check import reproduce, validate
from tracewords.cli_run import simulate, solve
from tracewords.errors import ModelError, TracewordsError
from tracewords.options import JsonOption, ModelArgument, OrderOption, print_json, print_table, say

UsageError: Any = typer.BadParameter.__mro__[1]  # click's, which typer may bring along under another name

app = typer.Typer(
    name="tracewords",
    help="Trace-moment hierarchies of attention: equations, solvers, trajectories and checked bounds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command()(solve)
app.command()(simulate)
app.command()(validate)
app.command()(reproduce)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tracewords {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def models(as_json: JsonOption = False) -> None:
    """List the shipped models.

    Example: tracewords models
    """
    from tracewords.derive.model import load_model, preset_names

    loaded = [load_model(name) for name in preset_names()]
    if as_json:
        print_json({"models": [{"name": m.name, "description": m.description, "digest": m.digest} for m in loaded]})
    else:
        print_table("Shipped models", ("name", "what it is"), [(m.name, m.description) for m in loaded])


@app.command()
def derive(
    model: ModelArgument,
    order: OrderOption = 4,
    as_json: JsonOption = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print couplings and equations as LaTeX.")] = False,
    potential: Annotated[bool, typer.Option("--potential", help="Print the population loss and its gradient.")] = False,
    loops: Annotated[
        bool, typer.Option("--loops", help="With --latex: the terms of finite learning rate too.")
    ] = False,
) -> None:
    """Derive the moment equations of a model.

    Example: tracewords derive tied-softmax --order 4 --latex
    """
    from tracewords.derive.system import System
    from tracewords.solvers import model_from

    system = System(model_from(model), order)
    if latex:
        typer.echo(system.latex(loops), nl=False)
    elif potential and not as_json:
        for symbol, word in zip(system.statics.symbols, system.statics.arguments, strict=True):
            typer.echo(f"{symbol} = tr({system.flow.alphabet.text(word)})")
        typer.echo(f"Phi = {system.potential_text()}")
        for name in system.statics.gradient:
            typer.echo(f"{name} = {system.coupling_text(name)}")
    elif as_json:
        print_json(
            {
                "model": system.model.name,
                "digest": system.model.digest,
                "order": system.order,
                "words": len(system),
                "terms": system.terms,
                "order_parameters": list(system.order_parameters),
                "couplings": {name: system.coupling_text(name) for name in system.couplings},
                **({"potential": system.potential_text()} if potential else {}),
            }
        )
    else:
        typer.echo(str(system))
        for name in system.couplings:
            typer.echo(f"{name} = {system.coupling_text(name)}")


@app.command()
def generate(
    model: Annotated[
        list[str] | None, typer.Argument(help="Presets or TOML files; all shipped models if none is given.")
    ] = None,
    order: Annotated[
        list[int] | None, typer.Option("--order", "-M", help="Orders; those that are shipped if none is given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; the shipped `generated` if not given.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare instead of writing; exit 1 if a file differs.")
    ] = False,
) -> None:
    """Write the NumPy and C solvers of models.

    Example: tracewords generate tied-softmax --order 6 --out my_solvers
    """
    from tracewords.derive.model import preset_names
    from tracewords.solvers import generate as write
    from tracewords.solvers import generated_folder, model_from

    if (model or order) and out is None and not check:
        raise ModelError("out", "nothing", "a folder for solvers other than the shipped ones: --out FOLDER")
    chosen = [model_from(m) for m in model or preset_names()]
    paths = write(out or generated_folder(), chosen, order, check)
    for path in paths if not check else []:
        typer.echo(str(path))
    say(f"{len(paths)} files {'are what the code writes now' if check else 'written'}")


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors of the user are one line and a status, never a traceback."""
    try:
        status = app(args=arguments, prog_name="tracewords", standalone_mode=False)
    except UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        say(f"tracewords: {' '.join(error.format_message().split())}{where}")
        sys.exit(2)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        say("tracewords: interrupted")
        sys.exit(130)
    except TracewordsError as error:
        say(f"tracewords: {' '.join(str(error).split())}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
