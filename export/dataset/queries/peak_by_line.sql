-- Peak by line over the fleet: what each line has at the peaks of all processes of a job that began on the same day, the most bytes first.
WITH peaks AS (
    SELECT job, CAST(started AS DATE) AS run_day, rank, process, device, time,
        row_number() OVER (PARTITION BY job, rank, process, device ORDER BY time DESC) AS newest
    FROM moments WHERE moment = 'peak')
SELECT l.job, p.run_day, l.layer, l.line, l.file, sum(l.bytes) AS bytes, sum(l.blocks) AS blocks, count(DISTINCT l.process) AS processes
FROM peaks p JOIN lines l ON l.process = p.process AND l.device = p.device AND l.time = p.time AND l.moment = 'peak'
    AND l.job IS NOT DISTINCT FROM p.job AND l.rank IS NOT DISTINCT FROM p.rank
WHERE p.newest = 1
GROUP BY l.job, p.run_day, l.layer, l.line, l.file
ORDER BY bytes DESC, l.job, p.run_day, l.layer, l.line, l.file
