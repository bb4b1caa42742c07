"""The parts of a node beside the runners: plugins in processes of their own (`plugins`), and strategies in this process (`qos`)."""
