-- Who went on with the work of a task.
ALTER TABLE tasks ADD COLUMN transferred_to TEXT;
