-- beat: record a heartbeat; false if other processes may be about to take this one for dead
UPDATE instances SET heartbeat = clock_timestamp()
FROM (SELECT id, heartbeat FROM instances WHERE id = :id FOR UPDATE) AS before
WHERE instances.id = before.id
RETURNING before.heartbeat > clock_timestamp() - make_interval(secs => :dead)

-- lead: become or stay the leader
UPDATE leader SET instance = :id, renewed = clock_timestamp()
WHERE instance = :id OR instance IS NULL OR renewed < clock_timestamp() - make_interval(secs => :dead)
RETURNING instance

-- resign: leave the lead to other processes
UPDATE leader SET instance = NULL WHERE instance = :id

-- alive: the processes with a recent heartbeat
SELECT id FROM instances WHERE heartbeat > clock_timestamp() - make_interval(secs => :dead)

-- leases: the attempts that a process owns
SELECT id, attempt FROM tasks WHERE status = 'running' AND lease_owner = :id

-- end_stopped: end transactions of processes that were stopped between two statements, as they may hold locks that all others need; the server itself ends one only after it was asked for answers
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = :application AND state = 'active'
  AND wait_event = 'ClientRead' AND xact_start < clock_timestamp() - make_interval(secs => :stopped)

-- processes: every process that made itself known, with the age of its heartbeat in seconds, and whether it leads
SELECT instances.id, extract(epoch FROM clock_timestamp() - heartbeat)::float8,
  leader.instance IS NOT NULL AND leader.renewed > clock_timestamp() - make_interval(secs => :dead)
FROM instances LEFT JOIN leader ON leader.instance = instances.id

-- living: the processes with a recent heartbeat, as records
SELECT {instance} FROM instances
WHERE heartbeat > clock_timestamp() - make_interval(secs => :dead) ORDER BY started_at, id

-- now: the time of the database in microseconds
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- due: how many tasks of each agent may be taken now
SELECT agent, count(*) FROM tasks WHERE status = 'pending' AND due_at <= :now GROUP BY agent

-- drop_jobs: delete the oldest due jobs of a queue except some
DELETE FROM procrastinate_jobs WHERE id IN (
  SELECT id FROM procrastinate_jobs
  WHERE queue_name = :queue AND status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= now())
  ORDER BY id DESC OFFSET :keep FOR UPDATE SKIP LOCKED
)

-- unblocked: the tasks that may be taken when a task has ended: the next of its gate, and one of each agent in its directory
(SELECT agent, due_at FROM tasks
WHERE status = 'pending' AND gate_key = (SELECT gate_key FROM tasks WHERE id = :id)
ORDER BY rank, due_at, id LIMIT 1)
UNION
SELECT agent, min(due_at) FROM tasks
WHERE status = 'pending' AND dir_key = (SELECT dir_key FROM tasks WHERE id = :id)
GROUP BY agent
