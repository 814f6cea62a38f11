# SPDX-License-Identifier: Apache-2.0
"""What the client and all services have of this extension."""
