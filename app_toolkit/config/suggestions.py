"""Suggestions for options and commands that do not exist.

Ray Serve, Ray, uvicorn, gunicorn and the FastAPI CLI have options with other names, or for features that work
differently here. The tables below have a sentence for each of these. Any other name is compared with those that exist.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

NO_PLACEMENT_GROUP = (
    "app_toolkit has no placement groups: one replica is one actor; use 'resources' and 'max_replicas_per_node'"
)
AFFINITY = "use 'affinity': calls with the same key prefer the same replica"
NO_CHOICE_OF_REPLICA = "a request goes to the less loaded of two replicas, or to that of its session: use 'affinity'"
NO_POLICY = "app_toolkit has no custom scaling policies; set the number yourself with `app-toolkit scale`"
NO_RESTARTS = "the controller replaces replicas, and 'retry' says which requests are sent again"
ONE_CONCURRENCY = "use 'max_ongoing_requests'"
PLACEMENT = "use 'resources' with a custom resource that only the intended nodes have"
NO_GRPC = "app_toolkit serves HTTP and WebSockets, but no gRPC"
OF_ONE_CALL = "results are pickled; this cannot be configured"

OTHER_NAMES: Mapping[str, str] = {
    # A deployment
    "args": "an application takes no arguments: read them from the environment, or pass them to `bind`",
    "backpressure_config": "use 'max_queued_requests' and 'max_queue_wait_s'; beyond them the status is 503",
    "deployment_actors": "start the actors that you need in the lifespan or in the constructor",
    "func_or_class": "decorate the class with `deployment`, or inherit from `Deployment`",
    "gang_scheduling_config": NO_PLACEMENT_GROUP,
    "graceful_shutdown_wait_loop_s": "use 'graceful_shutdown_timeout_s'; a replica ends as soon as its requests have",
    "init_args": "pass them to `bind`",
    "init_kwargs": "pass them to `bind`",
    "logging_config": "configure Python's logging in your code; the access log is an option of the instance",
    "max_concurrent_queries": ONE_CONCURRENCY,
    "max_constructor_retry_count": "a replica that fails is started again, ever more slowly; use 'startup_timeout_s'",
    "max_surge_percent": "use 'max_surge', for example max_surge='25%'",
    "num_replicas_per_node": "use 'max_replicas_per_node'",
    "placement_group_bundle_label_selector": NO_PLACEMENT_GROUP,
    "placement_group_bundles": NO_PLACEMENT_GROUP,
    "placement_group_strategy": NO_PLACEMENT_GROUP,
    "request_router_config": NO_CHOICE_OF_REPLICA,
    "rolling_update_percentage": "use 'max_surge' and 'max_unavailable'",
    "version": "app_toolkit computes the revision from the code and the options",
    # Autoscaling
    "aggregation_function": "the load is its mean over 'look_back_period_s'",
    "autoscaling_policy": NO_POLICY,
    "downscale_smoothing_factor": "use 'downscaling_factor'",
    "metrics_interval_s": "callers report their load by themselves; use 'look_back_period_s'",
    "policy": NO_POLICY,
    "smoothing_factor": "use 'upscaling_factor' and 'downscaling_factor'",
    "target_num_ongoing_requests_per_replica": "use 'target_ongoing_requests'",
    "upscale_smoothing_factor": "use 'upscaling_factor'",
    # The actor of a replica
    "concurrency_groups": ONE_CONCURRENCY,
    "fallback_strategy": PLACEMENT,
    "label_selector": PLACEMENT,
    "max_concurrency": ONE_CONCURRENCY,
    "max_restarts": NO_RESTARTS,
    "max_task_retries": NO_RESTARTS,
    "object_store_memory": "Ray has one object store for all actors of a node: set its size where Ray is started",
    "placement_group": NO_PLACEMENT_GROUP,
    "resources": "use 'custom'",
    "scheduling_strategy": PLACEMENT,
    # An application, and the instance
    "external_scaler_enabled": "`app-toolkit scale` works for every deployment",
    "grpc_options": NO_GRPC,
    "grpc_servicer_functions": NO_GRPC,
    "http_options": "write 'host', 'port' and the others at the top",
    "import_path": "use 'target'",
    "location": "every node that has replicas has proxies; use 'proxies_per_node'",
    "middlewares": "add the middleware to your FastAPI app",
    "num_proxies": "use 'proxies_per_node'",
    "proxy_location": "every node that has replicas has proxies; use 'proxies_per_node'",
    "request_timeout_s": "it is an option of each deployment",
    "root_path": "use 'route_prefix' of the application",
    "accelerator_type": "it belongs in the table 'ray' of 'resources'",
    "ray_actor_options": "use 'resources'; what only Ray has belongs in its table 'ray'",
    "runtime_env": "it belongs in the table 'ray' of 'resources' of each deployment",
    "ssl_ca_certs": "the proxies do not ask clients for certificates",
    "ssl_keyfile_password": "the key must not be encrypted with a password",
    "target_capacity": NO_POLICY,
    # One call
    "_by_reference": OF_ONE_CALL,
    "method_name": "call the method itself, as in `model.predict(x)`",
    "multiplexed_model_id": "load the model with `@multiplexed` and pass its name as an argument; with 'affinity', a "
    "call reaches a replica that has loaded it",
    "request_serialization": OF_ONE_CALL,
    "response_serialization": OF_ONE_CALL,
    "session_id": AFFINITY,
    "stream": "a method that yields is a stream by itself",
    "timeout": "use 'timeout_s'",
}
"""The suggestions by name. For a model that has an option of this name, the suggestion is not used."""

OTHER_FLAGS: Mapping[str, str] = {
    "--bind": "use --host and --port",
    "--blocking": "`app-toolkit run` serves until Ctrl-C, and `app-toolkit deploy` returns",
    "--env-file": "set the variables in the environment of the command",
    "--factory": "a function that can be called without arguments is a factory by itself",
    "--fd": "use --host and --port",
    "--limit-concurrency": "use 'max_ongoing_requests' of a deployment, and --max-connections",
    "--log-config": "configure Python's logging in your code",
    "--proxy-headers": "use --forwarded-allow-ips",
    "--root-path": "use --route-prefix",
    "--timeout": "use 'request_timeout_s' of a deployment",
    "--timeout-graceful-shutdown": "use 'graceful_shutdown_timeout_s' of a deployment",
    "--timeout-keep-alive": "use --keep-alive-timeout-s",
    "--uds": "use --host and --port",
    "--workers": "use --num-replicas of `app-toolkit run`: each replica is a process",
    "-b": "use --host and --port",
    "-w": "use --num-replicas of `app-toolkit run`: each replica is a process",
}
"""The suggestions for options of the command line, by the option. `OTHER_NAMES` has more."""

OTHER_COMMANDS: Mapping[str, str] = {
    "apply": "deploy",
    "build": "plan --format yaml",
    "check": "plan",
    "create": "new",
    "init": "new",
    "list": "status",
    "ls": "status",
    "ps": "status",
    "remove": "delete",
    "restart": "deploy",
    "revert": "rollback",
    "rm": "delete",
    "routes": "plan",
    "serve": "run",
    "start": "run",
    "stop": "shutdown",
    "undeploy": "delete",
    "undo": "rollback",
    "update": "deploy",
    "validate": "plan",
    "version": "--version",
}
"""The command that does what a command of another program does, by that command."""


def flag_suggestion(flag: str, of_deployments: Collection[str]) -> str:
    """Return a suggestion for an option that no command has, such as `--workers`, or "".

    `of_deployments`: the options of a deployment, which are set in the code or in an application file.
    """
    option = flag.removeprefix("--").replace("-", "_")
    if option in of_deployments:
        return f"{option!r} is an option of a deployment: set it in the code or in an application file"
    return OTHER_FLAGS.get(flag) or OTHER_NAMES.get(option, "")


def command_suggestion(command: str) -> str:
    """Return a suggestion for a command that does not exist, or ""."""
    if command in OTHER_COMMANDS:
        return f"use `app-toolkit {OTHER_COMMANDS[command]}`"
    if command.endswith((".py", ".yaml", ".yml", ".toml")) or ":" in command:
        return f"to serve it, use `app-toolkit run {command}`"
    return ""


def suggestion(option: str, known: Collection[str], tables: Mapping[str, Collection[str]]) -> str:
    """Return a suggestion to append to the message that `option` does not exist, or "".

    `known`: the options that exist at the same level. `tables`: the options within structured options, by their names.
    """
    for table, inner in tables.items():
        if option in inner:
            return f"; it belongs in {table!r}"
    if option in OTHER_NAMES:
        return f"; {OTHER_NAMES[option]}"
    return nearest(option, known)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, to append to the message that there is no such name, or ""."""
    return "".join(f"; did you mean {meant!r}?" for meant in get_close_matches(name, [*known], n=1))
