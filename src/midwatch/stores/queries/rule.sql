-- get: one rule
SELECT {rule} FROM rules WHERE id = :id

-- list: newest first
SELECT {rule} FROM rules
WHERE (CAST(:agent AS TEXT) IS NULL OR agent = :agent) AND (CAST(:revoked AS INTEGER) = 1 OR revoked_at IS NULL)
ORDER BY id DESC LIMIT :limit

-- declared: the rules that a set declares
SELECT {rule} FROM rules WHERE declared_by = :declared_by AND revoked_at IS NULL ORDER BY name
