-- beat: record a heartbeat; false if it is so late that other processes may consider this process dead
UPDATE instances SET heartbeat = clock_timestamp()
FROM (SELECT id, heartbeat FROM instances WHERE id = :id FOR UPDATE) AS before
WHERE instances.id = before.id
RETURNING before.heartbeat > clock_timestamp() - make_interval(secs => :dead)

-- lead: become or stay the leader
UPDATE leader SET instance = :id, renewed = clock_timestamp()
WHERE instance = :id OR instance IS NULL OR renewed < clock_timestamp() - make_interval(secs => :dead)
RETURNING instance

-- resign: give up the leadership
UPDATE leader SET instance = NULL WHERE instance = :id

-- alive: the processes with a recent heartbeat
SELECT id FROM instances WHERE heartbeat > clock_timestamp() - make_interval(secs => :dead)

-- leases: the attempts that a process owns
SELECT id, attempt FROM tasks WHERE status = 'running' AND lease_owner = :id

-- end_stopped: end transactions of processes suspended within a pipeline: they hold locks, and no timeout ends them
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = :application AND state = 'active'
  AND wait_event = 'ClientRead' AND xact_start < clock_timestamp() - make_interval(secs => :stopped)

-- processes: all registered processes, with the age of the heartbeat in seconds, and whether the process leads
SELECT instances.id, extract(epoch FROM clock_timestamp() - heartbeat)::float8,
  leader.instance IS NOT NULL AND leader.renewed > clock_timestamp() - make_interval(secs => :dead)
FROM instances LEFT JOIN leader ON leader.instance = instances.id

-- living: the processes with a recent heartbeat, as records
SELECT {instance} FROM instances
WHERE heartbeat > clock_timestamp() - make_interval(secs => :dead) ORDER BY started_at, id

-- now: the time of the database in microseconds
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- due: the number of claimable tasks of each agent
SELECT agent, count(*) FROM tasks WHERE status = 'pending' AND due_at <= :now GROUP BY agent

-- drop_jobs: delete the oldest due jobs of a queue, except a number of them
DELETE FROM procrastinate_jobs WHERE id IN (
  SELECT id FROM procrastinate_jobs
  WHERE queue_name = :queue AND status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= now())
  ORDER BY id DESC OFFSET :keep FOR UPDATE SKIP LOCKED
)

-- unblocked: tasks that are claimable after a task has ended: the next of its gate, and one per agent in its directory
(SELECT agent, due_at FROM tasks
WHERE status = 'pending' AND gate_key = (SELECT gate_key FROM tasks WHERE id = :id)
ORDER BY rank, due_at, id LIMIT 1)
UNION
SELECT agent, min(due_at) FROM tasks
WHERE status = 'pending' AND dir_key = (SELECT dir_key FROM tasks WHERE id = :id)
GROUP BY agent
