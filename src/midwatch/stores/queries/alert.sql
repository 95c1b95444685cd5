-- since: what was told lately
SELECT id FROM alerts WHERE told_at >= :since

-- tell: note that it was told
INSERT INTO alerts (id, told_at) VALUES (:id, :told_at) ON CONFLICT (id) DO UPDATE SET told_at = excluded.told_at

-- forget: what was told long ago
DELETE FROM alerts WHERE told_at < :before
