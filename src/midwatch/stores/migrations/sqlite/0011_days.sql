-- Level 3 of the usage are the sums of each four hours by actor, agent, session and model. A day of a time zone is not a
-- day in UTC, but it consists of few of these sums, and of some sums of level 1 at its beginning and at its end.
INSERT INTO usage_sums
SELECT 3, start / 16, actor, agent, session, model, sum(tasks), sum(done), sum(failed), sum(cancelled), sum(micros),
  sum(untold), sum(unpriced), sum(input_tokens), sum(output_tokens), sum(cost_usd)
FROM usage_sums WHERE level = 1 GROUP BY start / 16, actor, agent, session, model;
