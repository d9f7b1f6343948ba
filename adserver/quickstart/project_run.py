"""A project's run from its checks to its results: with browsers that report, or with devices that train.

result = run_project(Project.open(Path("play")), tell=print)
"""

from collections.abc import Callable
from importlib.util import find_spec

from adserver.quickstart.check import Checked, check
from adserver.quickstart.device_recipe import DeviceRecipe
from adserver.quickstart.measuring_recipe import MeasuringRecipe
from adserver.quickstart.project import Project
from adserver.quickstart.recipe import Recipe
from adserver.quickstart.run_lock import only_run
from adserver.quickstart.run_states import jobs_of
from adserver.quickstart.running import RunningFleet, require_installed
from adserver.quickstart.runs import NOTHING_ASKED, RunOptions, RunResult, describe_next
from adserver.quickstart.settings import Settings
from adserver.records.job_state import JobState
from adserver.records.submissions import check_label
from maskedlark.errors import InvalidTask
from maskedlark.terminal.exit_status import how_to_install
from maskedlark.terminal.plural import plural


def run_project(
    project: Project,
    tell: Callable[[str], None],
    options: RunOptions = NOTHING_ASKED,
) -> RunResult:
    """Check a project and run it once; servers that `adserver quickstart up` was not asked for are ended.

    It may be asked for while the run lasts.

    Raises:
        InvalidTask: the name, the note or a setting is wrong, an extra is missing, or another process runs
            the project; nothing was started.
    """
    check_label(options.name, options.note)
    # Servers take up to a minute to start, and the browsers come after them
    require_installed("helper", "adserver", "browser")
    checked = check(project)
    checked.require()
    if options.compare_plain and project.settings.is_measured_alone:
        raise InvalidTask(
            "--compare-plain compares a trained model, but [data] label is empty, so none is trained: leave "
            "the option out, or set label to the label column of your table"
        )
    if options.compare_plain and find_spec("torch") is None:
        raise InvalidTask(how_to_install("torch", __name__, needs="--compare-plain"))
    if found := checked.list_warnings(project.settings.measure):
        tell(
            f"{plural(len(found), 'warning')} of the table: see `adserver quickstart check {project.folder}`"
        )
    with only_run(project):
        return _run(project, tell, options, checked)


def _run(project: Project, tell: Callable[[str], None], options: RunOptions, checked: Checked) -> RunResult:
    running = RunningFleet(project, tell)
    was_held = False
    recipe: Recipe | MeasuringRecipe | None = None
    try:
        running.up()
        was_held = running.is_held
        if running.has_dashboard:
            tell(f"to watch in a browser: adserver quickstart up {project.folder} --dashboard")
        recipe = _recipe_of(project.settings)(
            project,
            tell,
            running.require,
            options,
            warnings=checked.list_warnings(project.settings.measure),
            leaks=checked.leaks,
        )
        return recipe.run()
    # SIGTERM comes as SystemExit.
    except (KeyboardInterrupt, SystemExit):
        tell(_how_to_go_on(project, recipe, is_up=running.is_held))
        raise
    finally:
        # Those of a run that was killed are ended, too; those that their owner asked for stay
        running.down_unless_held()
        if running.is_held and not was_held:
            tell(
                "the servers stay, since `up` was asked for meanwhile: `adserver quickstart down "
                f"{project.folder}` stops them"
            )


def _recipe_of(settings: Settings) -> type[Recipe | MeasuringRecipe]:
    """Return which steps a project's run has."""
    if settings.is_measured_alone:
        return MeasuringRecipe
    return DeviceRecipe if settings.federated.person else Recipe


def _how_to_go_on(project: Project, recipe: Recipe | MeasuringRecipe | None, *, is_up: bool) -> str:
    """Say what becomes of an interrupted run."""
    if recipe is None:
        return (
            "interrupted before the run, so nothing of it is kept: give the same command again, with all its "
            "options"
        )
    steps = recipe.steps
    again, job = describe_next(project, steps.folder), steps.done.get("job")
    if job is None:
        return f"interrupted in run {steps.folder.name}: {again}"
    with jobs_of(project) as find_job:
        found = find_job(job)
    # The model is tested and compared after that
    if found is not None and found.state is JobState.DONE:
        return f"interrupted in run {steps.folder.name}, whose job {job[:12]} is done: {again}"
    stop = f"`. {project.environment_file}`, then `adserver job cancel {job[:12]}` stops it"
    if is_up:
        return f"interrupted, but job {job[:12]} goes on at the servers: {again}; {stop}"
    return f"interrupted: job {job[:12]} waits until the servers run again: {again}; {stop}"
