"""The services of metrics sources and policies over an author's plugin."""

import json
from typing import Any

import grpc.aio

from agent.node.plugins.proto import metricssource_v1_pb2, nodeplugin_v1_pb2, policy_v1_pb2
from agent.node.plugins.proto.metricssource_v1_pb2_grpc import MetricsSourceServicer
from agent.node.plugins.proto.policy_v1_pb2_grpc import PolicyServicer
from agent.node.plugins.sdk import messages
from agent.node.plugins.sdk.calling import answered, called, checked
from agent.node.plugins.sdk.plugins import MetricsSourcePlugin, NodePlugin, PolicyPlugin
from agent.node.plugins.sdk.values import VmGoal, VmReading
from hosting.logs import Logger

Context = grpc.aio.ServicerContext[Any, Any]


def identity(plugin: NodePlugin) -> nodeplugin_v1_pb2.PluginIdentity:
    return nodeplugin_v1_pb2.PluginIdentity(name=plugin.name, software_version=plugin.software_version)


class MetricsSourceService(MetricsSourceServicer):
    """Serves `parley.metricssource.v1`."""

    def __init__(self, plugin: MetricsSourcePlugin, log: Logger) -> None:
        self._plugin = plugin
        self._log = log

    async def Describe(
        self, request: metricssource_v1_pb2.DescribeRequest, context: object
    ) -> metricssource_v1_pb2.DescribeResponse:
        return metricssource_v1_pb2.DescribeResponse(identity=identity(self._plugin))

    async def Read(
        self, request: metricssource_v1_pb2.ReadRequest, context: Context
    ) -> metricssource_v1_pb2.ReadResponse:
        return await answered(self._read(request), context, self._log)

    async def _read(self, request: metricssource_v1_pb2.ReadRequest) -> metricssource_v1_pb2.ReadResponse:
        found = await called(self._plugin.read, messages.vm(request.vm))
        return messages.reading_message(request.vm.uid, checked(found, VmReading, "read"))


class PolicyService(PolicyServicer):
    """Serves `parley.policy.v1`."""

    def __init__(self, plugin: PolicyPlugin, log: Logger) -> None:
        self._plugin = plugin
        self._log = log

    async def Describe(
        self, request: policy_v1_pb2.DescribeRequest, context: object
    ) -> policy_v1_pb2.DescribeResponse:
        return policy_v1_pb2.DescribeResponse(identity=identity(self._plugin))

    async def GetGoal(
        self, request: policy_v1_pb2.GetGoalRequest, context: Context
    ) -> policy_v1_pb2.GetGoalResponse:
        return await answered(self._goal(request), context, self._log)

    async def _goal(self, request: policy_v1_pb2.GetGoalRequest) -> policy_v1_pb2.GetGoalResponse:
        found = await called(
            self._plugin.goal,
            messages.vm(request.vm),
            messages.load(request.load),
            messages.sizing(request.sizing),
            json.loads(request.args_json or "{}"),
        )
        return messages.goal_message(request.vm.uid, checked(found, VmGoal, "goal"))
