# SPDX-License-Identifier: Apache-2.0
"""gunicorn's settings for every API, read through GUNICORN_CMD_ARGS.

They are in a file and not on the command line because Keystone and Nova read sys.argv themselves,
and fail with status 2 at gunicorn's options.
"""

import os

wsgi_app = f"{os.environ['LAB_MODULE']}:application"
bind = f"127.0.0.1:{os.environ['LAB_PORT']}"
worker_class = "gthread"
workers = 1
threads = 8
timeout = 0
keepalive = 75
control_socket_disable = True
