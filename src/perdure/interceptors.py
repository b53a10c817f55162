"""Interceptors: code around the starts, messages, executions and activities of an `App` or `Client`.

Pass objects of a class that derives from `Interceptor` as `App(interceptors=[…])` or `Client(interceptors=[…])`.
"""

from perdure.engine.interception import Execution, Interceptor, Send, Start

__all__ = ["Execution", "Interceptor", "Send", "Start"]
