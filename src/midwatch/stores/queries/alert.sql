-- sent_since: alerts that were sent since a time
SELECT id FROM alerts WHERE told_at >= :since

-- record: store when an alert was sent
INSERT INTO alerts (id, told_at) VALUES (:id, :told_at) ON CONFLICT (id) DO UPDATE SET told_at = excluded.told_at

-- prune: alerts that were sent long ago
DELETE FROM alerts WHERE told_at < :before
