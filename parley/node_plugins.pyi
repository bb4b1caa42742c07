# What authors of node plugins import, with the home of each name: the only list of them. Read by type checkers, and by node_plugins.py.

from agent.node.plugins.sdk.plugins import MetricsSourcePlugin as MetricsSourcePlugin
from agent.node.plugins.sdk.plugins import NodePlugin as NodePlugin
from agent.node.plugins.sdk.plugins import PolicyPlugin as PolicyPlugin
from agent.node.plugins.sdk.plugins import ResizerPlugin as ResizerPlugin
from agent.node.plugins.sdk.registration import RegistrationOffer as RegistrationOffer
from agent.node.plugins.sdk.registration import RegistrationServer as RegistrationServer
from agent.node.plugins.sdk.registration import SocketTakenError as SocketTakenError
from agent.node.plugins.sdk.serving import serve as serve
from agent.node.plugins.sdk.serving import serve_until_told as serve_until_told
from agent.node.plugins.sdk.values import Amount as Amount
from agent.node.plugins.sdk.values import NotWrittenError as NotWrittenError
from agent.node.plugins.sdk.values import PluginVm as PluginVm
from agent.node.plugins.sdk.values import StallPercent as StallPercent
from agent.node.plugins.sdk.values import StallTotals as StallTotals
from agent.node.plugins.sdk.values import TargetRefusedError as TargetRefusedError
from agent.node.plugins.sdk.values import UnitGoal as UnitGoal
from agent.node.plugins.sdk.values import UnitPart as UnitPart
from agent.node.plugins.sdk.values import VmGoal as VmGoal
from agent.node.plugins.sdk.values import VmLoad as VmLoad
from agent.node.plugins.sdk.values import VmReading as VmReading
from agent.node.plugins.sdk.values import VmSize as VmSize
from agent.node.plugins.sdk.values import VmSizing as VmSizing
from agent.node.plugins.sdk.values import WriteDeadline as WriteDeadline
