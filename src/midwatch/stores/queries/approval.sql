-- get: one approval
SELECT {approval} FROM approvals WHERE id = :id

-- list: newest first
SELECT {approval} FROM approvals WHERE (CAST(:status AS TEXT) IS NULL OR status = :status) ORDER BY id DESC LIMIT :limit

-- pending_of: what an attempt waits for
SELECT {approval} FROM approvals WHERE task_id = :task_id AND attempt = :attempt AND status = 'pending' ORDER BY id

-- next_expiry: when the next open question expires
SELECT min(expires_at) FROM approvals WHERE status = 'pending'
