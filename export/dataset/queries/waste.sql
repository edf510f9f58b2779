-- Which pods waste most reserved memory: memory that the allocators of a pod's processes hold and had not handed out when they were
-- last seen, the most first. Outside Kubernetes a row is a job on a node.
WITH newest AS (
    SELECT job, rank, node, namespace, pod, process, device, time, reserved_bytes, live_bytes,
        row_number() OVER (PARTITION BY job, rank, process, device ORDER BY time DESC) AS newest
    FROM moments WHERE moment <> 'peak')
SELECT namespace, pod, node, job, count(DISTINCT process) AS processes, sum(reserved_bytes - live_bytes) AS unused_bytes,
    sum(reserved_bytes) AS reserved_bytes, sum(live_bytes) AS live_bytes, max(time) AS seen
FROM newest
WHERE newest = 1 AND reserved_bytes IS NOT NULL AND live_bytes IS NOT NULL
GROUP BY namespace, pod, node, job
ORDER BY unused_bytes DESC, namespace, pod, node, job
