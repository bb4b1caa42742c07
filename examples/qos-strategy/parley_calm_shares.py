"""The QoS strategy `CalmShares`: while tasks of the node wait for CPUs, best-effort pods get the smallest share of them.

Install it beside the agent (`pip install .`), and enable it in the agent's settings: `qos: {featureGates: {CalmShares: true}}`.
"""

from parley.node_plugins import (
    PSI,
    Aggregation,
    CgroupResource,
    CgroupUpdate,
    FeatureSpec,
    FeatureStage,
    MetricCache,
    MetricError,
    NodeClient,
    StatesInformer,
    StopSignal,
    StrategyArgs,
    StrategyDecision,
)

LEAST, USUAL = 2, 1024
"""CPU shares, as in cgroup v1."""
WAITING = {"psi_resource": "cpu", "psi_precision": "avg10", "psi_degree": "some"}


class CalmSharesArgs(StrategyArgs):
    """The settings of `qos.args.CalmShares`."""

    interval: float = 1.0
    """Seconds between two rounds."""
    pressure_percent: float = 20.0
    """Hold back while tasks wait for CPUs in more of the time; `pressurePercent` in the settings."""


class CalmShares:
    """One thread of the agent runs `setup`, then `run` until its end is asked for, then `stop`."""

    feature_spec = FeatureSpec(default=False, stage=FeatureStage.ALPHA)

    args_model = CalmSharesArgs

    def init_flags(self, args: CalmSharesArgs) -> None:
        self.args = args

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        self.client, self.cache = client, metric_cache
        self.limit = self.args.pressure_percent

    def run(self, stop: StopSignal) -> None:
        while not stop.is_set():
            self.round()
            stop.wait(self.args.interval)

    def stop(self) -> None:
        self.give(USUAL, "ended", {})

    def round(self) -> None:
        try:
            waiting = self.cache.query(PSI, 30.0, Aggregation.LAST, WAITING).value
        except MetricError as error:  # without a metric nothing is known, and nothing is changed
            self.client.decided(StrategyDecision("no-metric", str(error)))
            return
        inputs = {"waiting_percent": waiting, "limit_percent": self.limit}
        if waiting > self.limit:
            self.give(LEAST, "pressure", inputs)
        else:
            self.give(USUAL, "calm", inputs)

    def give(self, shares: int, reason: str, inputs: dict[str, float]) -> None:
        """Set the shares of all best-effort pods together, if they are others, and say why."""
        groups = self.client.cgroups.best_effort()
        wrong = [group for group in groups if self.client.read(group, CgroupResource.CPU_SHARES) != shares]
        updates = [CgroupUpdate(group, CgroupResource.CPU_SHARES, shares, reason) for group in wrong]
        outcomes = self.client.write(updates) if updates else ()
        told = [f"{each.update.group}: {each.result}" for each in outcomes]
        message = f"CPU shares of best effort: {shares}; {', '.join(told) or 'unchanged'}"
        self.client.decided(StrategyDecision(reason, message, inputs, is_action=bool(updates)))
