-- Regressions between days: lines of a job that have more at the peak than on the day before on which the job began, in bytes for each
-- process. The largest change is first. Jobs are compared by name: it is of use if a nightly job has the same name each day.
WITH peaks AS (
    SELECT job, CAST(started AS DATE) AS run_day, rank, process, device, time,
        row_number() OVER (PARTITION BY job, rank, process, device ORDER BY time DESC) AS newest
    FROM moments WHERE moment = 'peak' AND job IS NOT NULL),
days AS (
    SELECT job, run_day, count(DISTINCT process) AS processes, lag(run_day) OVER (PARTITION BY job ORDER BY run_day) AS day_before
    FROM peaks GROUP BY job, run_day),
sums AS (
    SELECT p.job, p.run_day, l.layer, l.line, coalesce(l.file, '') AS file, sum(l.bytes) AS bytes
    FROM peaks p JOIN lines l ON l.job = p.job AND l.rank IS NOT DISTINCT FROM p.rank AND l.process = p.process AND l.device = p.device
        AND l.time = p.time AND l.moment = 'peak'
    WHERE p.newest = 1
    GROUP BY p.job, p.run_day, l.layer, l.line, coalesce(l.file, '')),
changes AS (
    SELECT d.job, d.run_day, d.day_before, s.layer, s.line, s.file,
        CAST(coalesce(b.bytes, 0) AS DOUBLE) / e.processes AS bytes_before, CAST(s.bytes AS DOUBLE) / d.processes AS bytes_after
    FROM days d
    JOIN days e ON e.job = d.job AND e.run_day = d.day_before
    JOIN sums s ON s.job = d.job AND s.run_day = d.run_day
    LEFT JOIN sums b ON b.job = d.job AND b.run_day = d.day_before AND b.layer = s.layer AND b.line = s.line AND b.file = s.file)
SELECT job, run_day, day_before, layer, line, file, bytes_before, bytes_after, bytes_after - bytes_before AS change
FROM changes
WHERE bytes_after > bytes_before
ORDER BY change DESC, job, run_day, layer, line, file
