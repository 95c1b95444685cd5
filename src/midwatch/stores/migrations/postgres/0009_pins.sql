-- The directory that was at the path of a task's working directory when the task was created.
ALTER TABLE tasks ADD COLUMN pin TEXT;
