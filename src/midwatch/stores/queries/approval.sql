-- get: one approval
SELECT {approval} FROM approvals WHERE id = :id

-- pending_of: the open questions of an attempt
SELECT {approval} FROM approvals WHERE task_id = :task_id AND attempt = :attempt AND status = 'pending' ORDER BY id

-- overdue: open questions that have expired
SELECT {approval} FROM approvals WHERE status = 'pending' AND expires_at <= :now ORDER BY expires_at, id LIMIT :limit

-- next_expiry: when the next open question expires
SELECT min(expires_at) FROM approvals WHERE status = 'pending'

-- list: newest first
SELECT {approval} FROM approvals ORDER BY id DESC LIMIT :limit

-- list_status: newest first, of one status
SELECT {approval} FROM approvals WHERE status = :status ORDER BY id DESC LIMIT :limit

-- list_task: newest first, of one task
SELECT {approval} FROM approvals
WHERE task_id = :task_id AND (CAST(:status AS TEXT) IS NULL OR status = :status) ORDER BY id DESC LIMIT :limit
