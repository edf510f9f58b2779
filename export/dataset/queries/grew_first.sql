-- Who grew first: the processes of each job that grow, in the order in which they began to, of those that began on the same day. Between
-- machines this is as exact as their clocks. The agent does not know when growth began: there it is when growth was first seen.
WITH judged AS (
    SELECT job, CAST(started AS DATE) AS run_day, rank, process, node, pod, program, growth_bytes_per_step, grew_line, grew_holder,
        min(CASE WHEN growth_bytes_per_step > 0 THEN coalesce(grew_at, time) END) OVER (PARTITION BY job, rank, process) AS since,
        row_number() OVER (PARTITION BY job, rank, process ORDER BY time DESC, device) AS newest
    FROM moments WHERE moment <> 'peak')
SELECT job, run_day, row_number() OVER (PARTITION BY job, run_day ORDER BY since, rank, process) AS place,
    rank, process, node, pod, program, since, growth_bytes_per_step, grew_line, grew_holder
FROM judged
WHERE newest = 1 AND since IS NOT NULL
ORDER BY job, run_day, place
