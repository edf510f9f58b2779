-- Who grew first: the processes of each job that grow or grew, in the order in which they began to, of those that began on the same day.
-- Between machines this is as exact as their clocks. The agent does not know when growth began: there it is when growth was first seen.
WITH grown AS (
    SELECT job, rank, process, max(time) AS newest, min(CASE WHEN growth_bytes_per_step > 0 THEN coalesce(grew_at, time) END) AS since
    FROM moments WHERE moment <> 'peak'
    GROUP BY job, rank, process
    HAVING max(growth_bytes_per_step) > 0),
latest AS (
    SELECT m.job, CAST(m.started AS DATE) AS run_day, m.rank, m.process, m.node, m.pod, m.program, g.since, m.growth_bytes_per_step,
        m.grew_line, m.grew_holder, row_number() OVER (PARTITION BY m.job, m.rank, m.process ORDER BY m.device) AS device_place
    FROM grown g JOIN moments m ON m.process = g.process AND m.time = g.newest AND m.moment <> 'peak'
        AND m.job IS NOT DISTINCT FROM g.job AND m.rank IS NOT DISTINCT FROM g.rank)
SELECT job, run_day, row_number() OVER (PARTITION BY job, run_day ORDER BY since, rank, process) AS place,
    rank, process, node, pod, program, since, growth_bytes_per_step, grew_line, grew_holder
FROM latest
WHERE device_place = 1
ORDER BY job, run_day, place
