"""``fairlead tune``: a search over the parameters of a script or a bundled model, each trial a proved launch.

What a script in an image calls is here, and imports the standard library only:

    from fairlead import tune

    parameters = tune.parameters()  # of this trial; empty where no search runs
    tune.report(step, loss)         # the last one is the trial's value; a bad one may end it early
"""

from fairlead.tune.reporting import folder as folder
from fairlead.tune.reporting import parameters as parameters
from fairlead.tune.reporting import report as report
from fairlead.tune.reporting import source as source
