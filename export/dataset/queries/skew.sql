-- Skew by rank: how far the processes of a job are apart at their peaks, in all memory of the framework ("total") and by what it is for.
-- The largest skew is first. Processes that began on the same day are compared. One without a rank, such as a launcher, is left out.
WITH peaks AS (
    SELECT job, CAST(started AS DATE) AS run_day, rank, process, device, time,
        row_number() OVER (PARTITION BY job, process, device ORDER BY time DESC) AS newest
    FROM moments WHERE moment = 'peak' AND rank IS NOT NULL),
memory AS (
    SELECT p.job, p.run_day, p.rank, p.process, coalesce(l.category, 'unknown') AS category, l.bytes
    FROM peaks p JOIN lines l ON l.process = p.process AND l.device = p.device AND l.time = p.time AND l.moment = 'peak'
        AND l.job IS NOT DISTINCT FROM p.job AND l.rank = p.rank
    WHERE p.newest = 1 AND l.layer = 'torch'),
named AS (
    SELECT job, run_day, rank, process, category, bytes FROM memory
    UNION ALL SELECT job, run_day, rank, process, 'total', bytes FROM memory),
cells AS ( -- a process without a category has 0 bytes of it
    SELECT p.job, p.run_day, p.rank, p.process, c.category
    FROM (SELECT DISTINCT job, run_day, rank, process FROM memory) p
    JOIN (SELECT DISTINCT job, run_day, category FROM named) c ON c.job IS NOT DISTINCT FROM p.job AND c.run_day = p.run_day),
sums AS (
    SELECT c.job, c.run_day, c.rank, c.process, c.category, coalesce(sum(n.bytes), 0) AS bytes
    FROM cells c LEFT JOIN named n ON n.process = c.process AND n.rank = c.rank AND n.category = c.category
        AND n.job IS NOT DISTINCT FROM c.job
    GROUP BY c.job, c.run_day, c.rank, c.process, c.category),
ordered AS (
    SELECT job, run_day, rank, category, bytes,
        row_number() OVER (PARTITION BY job, run_day, category ORDER BY bytes DESC, rank, process) AS most,
        row_number() OVER (PARTITION BY job, run_day, category ORDER BY bytes, rank, process) AS least,
        count(*) OVER (PARTITION BY job, run_day, category) AS processes
    FROM sums)
SELECT m.job, m.run_day, m.category, m.processes, m.bytes - l.bytes AS skew_bytes,
    m.rank AS most_rank, m.bytes AS most_bytes, l.rank AS least_rank, l.bytes AS least_bytes
FROM ordered m JOIN ordered l ON l.category = m.category AND l.least = 1 AND l.run_day = m.run_day AND l.job IS NOT DISTINCT FROM m.job
WHERE m.most = 1
ORDER BY skew_bytes DESC, m.job, m.run_day, m.category
