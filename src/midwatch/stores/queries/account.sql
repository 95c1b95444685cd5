-- reserve: count one step, and lock the account until the end of the transaction
UPDATE accounts SET steps = steps + 1 WHERE id = :id RETURNING {account}

-- give_back: the step was refused
UPDATE accounts SET steps = steps - 1 WHERE id = :id

-- charge: add an amount to the spending; tokens never become more than the database can store
UPDATE accounts SET tokens = CASE WHEN tokens < 4000000000000000000 THEN tokens + :tokens ELSE tokens END,
  usd = usd + :usd, steps = steps + :steps, seconds = seconds + :seconds
WHERE id = :account_id

-- sum: what the tasks of an account have spent, also if the account does not exist
{account_spent}

-- running: the running tasks of an account
SELECT id FROM tasks {by:tasks_account} WHERE account_id = :id AND status = 'running' ORDER BY id

-- add_up: let a new account begin with what its tasks have spent
UPDATE accounts SET tokens = spent.tokens, usd = spent.usd, steps = spent.steps, seconds = spent.seconds
FROM ({account_spent}) AS spent WHERE accounts.id = :id

-- of_ids: those of these accounts that exist
SELECT {account} FROM accounts WHERE id IN {list:ids}

-- asked: the account that a question asks for
SELECT {account} FROM accounts WHERE approval_id = :approval_id

-- asking: accounts for which people were asked
SELECT {account} FROM accounts WHERE approval_id IS NOT NULL ORDER BY approval_id DESC LIMIT :limit

-- recent: newest first
SELECT {account} FROM accounts {by:accounts_recent} WHERE length(limits) > 2 ORDER BY created_at DESC, id DESC LIMIT :limit

-- add_day: an account of a day, unless it exists
INSERT INTO accounts ({account}) VALUES ({account_params}) ON CONFLICT (id) DO NOTHING

-- set_day: the limits of a day, if they have changed
UPDATE accounts SET limits = :limits, warned = '' WHERE id = :id AND limits <> :limits

-- tasks: the tasks of an account, oldest first
SELECT {task} FROM tasks WHERE id = :id
UNION ALL SELECT {task} FROM (
  SELECT {task} FROM tasks WHERE account_id = :id ORDER BY id LIMIT :limit
) AS others

-- reported_cost: whether one of the first tasks of an account has reported a cost
SELECT 1 FROM (
  SELECT usage FROM tasks WHERE id = :id
  UNION ALL SELECT usage FROM (
    SELECT usage FROM tasks {by:tasks_account} WHERE account_id = :id ORDER BY id LIMIT 200
  ) AS others
) AS members WHERE {number:usage.cost_usd} IS NOT NULL LIMIT 1

-- prune: accounts that belonged to removed tasks or automations, and that no other work has any more
DELETE FROM accounts WHERE id IN {list:ids}
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = accounts.id)
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.account_id = accounts.id)
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.retry_of = accounts.id)
  AND NOT EXISTS (SELECT 1 FROM automations WHERE automations.account_id = accounts.id)
  AND NOT EXISTS (SELECT 1 FROM goals WHERE goals.id = accounts.id)

-- prune_days: accounts of days long ago
DELETE FROM accounts WHERE created_at < :before AND scope = 'day'
