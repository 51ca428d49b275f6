"""The load client beside others, against one server that knows the right answer."""
