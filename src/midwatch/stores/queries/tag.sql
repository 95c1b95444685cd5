-- add: one tag of a record
INSERT INTO tagged (noun, tag, record_id) VALUES (:noun, :tag, :id) ON CONFLICT DO NOTHING

-- clear: all tags of a record
DELETE FROM tagged WHERE noun = :noun AND record_id = :id
