-- list: oldest first
SELECT {instance} FROM instances ORDER BY started_at, id

-- remove: one process
DELETE FROM instances WHERE id = :id
