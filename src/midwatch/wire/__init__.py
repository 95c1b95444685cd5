"""What the HTTP interface says, as types: the replies of the API, and what its client returns.

Times are ISO 8601 in UTC; what is not known is null.
"""

from midwatch.wire.approvals import *  # noqa: F403 - one place to import every shape from
from midwatch.wire.desk import *  # noqa: F403
from midwatch.wire.handoffs import *  # noqa: F403
from midwatch.wire.standing import *  # noqa: F403
from midwatch.wire.worktrees import *  # noqa: F403
