-- The retries of a task: the account of the task is kept while one of them exists.
CREATE INDEX tasks_retries ON tasks (retry_of) WHERE retry_of IS NOT NULL;
