"""What the service does, each in a process of its own if need be.

In a module of its own since ``serve --help`` names them and loads no service for it.
"""

DUTIES = ("collect", "tick", "notify", "web")
