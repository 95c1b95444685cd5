-- What goals may cost, and have cost.
ALTER TABLE goals ADD COLUMN max_usd REAL NOT NULL DEFAULT 0;
ALTER TABLE goals ADD COLUMN usd REAL NOT NULL DEFAULT 0;
