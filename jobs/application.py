"""The application as a Ray Serve config file names it: `import_path: jobs.application:application`.

For clusters whose operator deploys by such a file, as KubeRay's RayService does (infra/kuberay/ray-service.yaml); elsewhere
`jobs/deploy.py` does the same by itself.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobs.settings import VARIABLES, Settings
from shards.errors import BadSpec

if TYPE_CHECKING:
    from ray.serve import Application

# Beside settings.
REVISION, COORDINATORS = "revision", "coordinators"


def application(args: Mapping[str, Any]) -> "Application":
    """The coordinator behind Serve's proxies, which listen where the config file's `http_options` say.

    args: settings that go before the environment of the node where Serve builds it, e.g. {"corpus": "docs"}, by the names of
    `jobs.settings.VARIABLES`; `coordinators`, how many processes answer (1); `revision`, any value: Serve builds anew what has other args
    than before, and so reads keys that have changed. Raises BadSpec, also where others than this machine can reach it and there is no key.
    """
    from jobs.keys import publish_first
    from serve.app import build

    given = {name: value for name, value in args.items() if name not in (REVISION, COORDINATORS)}
    if unknown := sorted(given.keys() - VARIABLES.keys()):
        known = ", ".join([REVISION, COORDINATORS, *VARIABLES])
        raise BadSpec(f"The args of the Serve config file: there is no {', '.join(unknown)}. There are {known}.")
    n = args.get(COORDINATORS, 1)
    if not isinstance(n, int) or n < 1:
        raise BadSpec(f"The args of the Serve config file: coordinators is {n!r}. Give a number, 1 or more.")
    loaded = Settings.load(**given)
    publish_first(loaded)
    settings = loaded.service_settings()
    front = settings.front.model_copy(update={"own_listener": False, "coordinators": n})
    return build(settings.model_copy(update={"front": front}))
