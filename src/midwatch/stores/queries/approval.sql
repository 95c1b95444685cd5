-- get: one approval
SELECT {approval} FROM approvals WHERE id = :id

-- list: newest first
SELECT {approval} FROM approvals
WHERE (CAST(:status AS TEXT) IS NULL OR status = :status) AND (CAST(:task_id AS TEXT) IS NULL OR task_id = :task_id)
ORDER BY id DESC LIMIT :limit

-- pending_of: the open questions of an attempt
SELECT {approval} FROM approvals WHERE task_id = :task_id AND attempt = :attempt AND status = 'pending' ORDER BY id

-- overdue: open questions that have expired
SELECT {approval} FROM approvals WHERE status = 'pending' AND expires_at <= :now ORDER BY expires_at, id LIMIT :limit

-- next_expiry: when the next open question expires
SELECT min(expires_at) FROM approvals WHERE status = 'pending'
