-- Which pods waste most reserved memory: memory that the allocators of a pod's processes hold and had not handed out when they were
-- last seen, the most first. Outside Kubernetes a row is a job on a node.
WITH latest AS (
    SELECT job, rank, process, device, max(time) AS time FROM moments WHERE moment <> 'peak' GROUP BY job, rank, process, device)
SELECT m.namespace, m.pod, m.node, m.job, count(DISTINCT m.process) AS processes,
    CAST(sum(m.reserved_bytes - m.live_bytes) AS BIGINT) AS unused_bytes, CAST(sum(m.reserved_bytes) AS BIGINT) AS reserved_bytes,
    CAST(sum(m.live_bytes) AS BIGINT) AS live_bytes, max(m.time) AS seen
FROM latest l JOIN moments m ON m.process = l.process AND m.device = l.device AND m.time = l.time AND m.moment <> 'peak'
    AND m.job IS NOT DISTINCT FROM l.job AND m.rank IS NOT DISTINCT FROM l.rank
WHERE m.reserved_bytes IS NOT NULL AND m.live_bytes IS NOT NULL
GROUP BY m.namespace, m.pod, m.node, m.job
ORDER BY unused_bytes DESC, m.namespace, m.pod, m.node, m.job
