-- instance -> instance_id, workflow_name, input_data, framework, status, output_data, current_activity_id, source_hash,
--   owner_service, continued_from, locked_by, locked_at, lock_timeout_seconds, lock_expires_at, lock_token, started_at,
--   updated_at, headers
-- Every field of an instance, as `instances.from_row` reads them.
instance_id, workflow_name, input_data, framework, status, output_data, current_activity_id, source_hash,
       owner_service, continued_from, locked_by, {utc(locked_at)}, lock_timeout_seconds, {utc(lock_expires_at)},
       lock_token, {utc(started_at)}, {utc(updated_at)}, headers

-- insert_event
-- The columns of a new event.
INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)

-- events
-- The events to record, in order, as the CTE `item`. PostgreSQL only.
item AS (
  SELECT * FROM unnest(:instance_ids::text[], :tokens::bigint[], :worker_ids::text[], :activity_ids::text[],
                       :event_types::text[], :data_types::text[], :texts::text[], :binaries::bytea[],
                       :times::timestamp[]) WITH ORDINALITY
         AS item (instance_id, token, worker_id, activity_id, event_type, data_type, event_data, event_data_binary,
                  created_at, position))

-- mark
-- Queue on a channel, and mark that there may be something to deliver.
INSERT INTO perdure_channels (channel, dirty_at) VALUES (:channel, {now})
  {on_conflict_do_update(channel)} dirty_at = COALESCE(perdure_channels.dirty_at, {now})

-- queued
-- This session has its turn on a channel. PostgreSQL: sessions that wait for a row compete for each new version of it, and
-- one can lose for seconds. So a session that finds the row locked waits for an advisory lock, which has a queue, before
-- it waits for the row. It is the row that protects the channel: a session that has locked it already does not queue. The
-- first number of the lock is `perd` in ASCII.
(SELECT CASE WHEN EXISTS (SELECT 1 FROM perdure_channels WHERE channel = :channel FOR UPDATE SKIP LOCKED) THEN ''
                     ELSE pg_advisory_xact_lock(1885696612, hashtext(:channel))::text END) IS NOT NULL

-- queued_mark
-- Queue on a channel, and mark that there may be something to deliver. PostgreSQL only.
INSERT INTO perdure_channels (channel, dirty_at) SELECT :channel, {now} WHERE {queued}
  ON CONFLICT (channel) DO UPDATE SET dirty_at = COALESCE(perdure_channels.dirty_at, {now})

-- waits
-- The instance of a timer or subscription is waiting.
(SELECT i.status FROM workflow_instances i WHERE i.instance_id = of.instance_id)
       IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')

-- waits_free
-- The same, and the instance is free.
(SELECT CASE WHEN i.locked_by IS NULL OR i.lock_expires_at <= {now} THEN i.status END
          FROM workflow_instances i WHERE i.instance_id = of.instance_id)
       IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')

-- may_wake
-- An instance may be woken: it waits and is free, or is leased to the caller.
(i.lock_token = :token AND i.status IN ('running', 'waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
        OR :token IS NULL AND i.status IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
           AND (i.locked_by IS NULL OR i.lock_expires_at <= {now}))

-- is_over
-- Whether (1) or not (0) a wait for any message has timed out; a wait that exists keeps its time, or that it has none.
COALESCE((SELECT CASE WHEN w.timeout_at <= {now} THEN 1 ELSE 0 END FROM perdure_waits w
                  WHERE w.instance_id = :instance_id AND w.activity_id = :activity_id AND w.channel = :channel
                    AND w.match_key IS NULL AND :pending = 1),
                CASE WHEN COALESCE(:at, {after(:after_sec)}) <= {now} THEN 1 ELSE 0 END)

-- first_wait
-- What the first wait of a subscription is for; other frameworks store it in the subscription itself.
COALESCE(s.activity_id, (SELECT w.activity_id FROM perdure_waits w {index(idx_perdure_waits_subscription)}
                                 WHERE w.instance_id = s.instance_id AND w.channel = s.channel
                                 ORDER BY w.instance_id, w.channel, w.id LIMIT 1))

-- first_timeout
-- When the first wait of a subscription ends.
COALESCE(s.timeout_at, (SELECT w.timeout_at FROM perdure_waits w {index(idx_perdure_waits_subscription)}
                                 WHERE w.instance_id = s.instance_id AND w.channel = s.channel
                                 ORDER BY w.instance_id, w.channel, w.id LIMIT 1))

-- cursor
-- The further of a subscription's two cursors.
{greatest(COALESCE(s.cursor_message_id, 0), COALESCE(
         (SELECT c.last_delivered_id FROM channel_delivery_cursors c
           WHERE c.channel = s.channel AND c.instance_id = s.instance_id), 0))}

-- next
-- The next message of a broadcast subscriber `s`, whatever its data. Here and below, ORDER BY names the channel, too:
-- otherwise MySQL would sort the whole channel. With NOT EXISTS, MariaDB would read all of `perdure_taken_messages`.
(SELECT m.id FROM channel_messages m {index(idx_channel_messages_order)}
          WHERE m.channel = s.channel AND m.id > {cursor}
            AND (SELECT x.message_id FROM perdure_taken_messages x
                  WHERE x.instance_id = s.instance_id AND x.channel = s.channel AND x.message_id = m.id) IS NULL
          ORDER BY m.channel, m.id LIMIT 1)

-- next_after
-- The next message of the broadcast subscriber in the parameters, after `@cursor`: MySQL seeks a known value, and would
-- otherwise read the channel from its first message on.
(SELECT m.id FROM channel_messages m {index(idx_channel_messages_order)}
          WHERE m.channel = :channel AND m.id > @cursor
            AND (SELECT x.message_id FROM perdure_taken_messages x
                  WHERE x.instance_id = :instance_id AND x.channel = :channel AND x.message_id = m.id) IS NULL
          ORDER BY m.channel, m.id LIMIT 1)

-- next_match
-- The next message of a broadcast subscriber `s` that has the key of `of`: after its cursors, and after the last one
-- that it took by that key.
(SELECT k.message_id FROM perdure_message_matches k
          WHERE k.match_key = of.match_key
            AND k.message_id > {greatest(COALESCE(s.cursor_message_id, 0), COALESCE(
                  (SELECT c.last_delivered_id FROM channel_delivery_cursors c
                    WHERE c.channel = s.channel AND c.instance_id = s.instance_id), 0), COALESCE(
                  (SELECT MAX(y.message_id) FROM perdure_taken_messages y
                    WHERE y.instance_id = s.instance_id AND y.channel = s.channel AND y.match_key = of.match_key), 0))}
            AND (SELECT x.message_id FROM perdure_taken_messages x
                  WHERE x.instance_id = s.instance_id AND x.channel = s.channel
                    AND x.message_id = k.message_id) IS NULL
          ORDER BY k.match_key, k.message_id LIMIT 1)

-- newest
-- The last message of a channel. Here and below, ORDER BY names the channel, too: otherwise MySQL would sort all of it.
(SELECT m.id FROM channel_messages m {index(idx_channel_messages_order)}
          WHERE m.channel = of.channel ORDER BY m.channel DESC, m.id DESC LIMIT 1)

-- unclaimed
-- The first message of a channel that is not claimed.
(SELECT m.id FROM channel_messages m {index(idx_channel_messages_order)}
          WHERE m.channel = of.channel
            AND (SELECT k.message_id FROM channel_message_claims k WHERE k.message_id = m.message_id) IS NULL
          ORDER BY m.channel, m.id LIMIT 1)

-- behind -> channel, instance_id
-- The free subscribers that wait while a message of their broadcast channel is pending. The mode is no condition of the
-- subscription: PostgreSQL would look for it by channel and mode, and read all subscribers of the channel for each one.
SELECT w.channel, w.instance_id FROM perdure_waits w {index(idx_perdure_waits_channel)}
 WHERE w.channel {any(:channels)} AND w.match_key IS NULL AND {waits_free(w)}
   AND (SELECT CASE s.mode WHEN 'broadcast' THEN {next} END FROM channel_subscriptions s
         WHERE s.instance_id = w.instance_id AND s.channel = w.channel) IS NOT NULL
UNION ALL
SELECT s.channel, s.instance_id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel {any(:channels)} AND s.mode = 'broadcast' AND s.activity_id IS NOT NULL
   AND {waits_free(s)} AND {next} IS NOT NULL
 LIMIT :limit

-- is_plain
-- No wait of a channel matches by values, and no subscriber competes for its messages.
((SELECT q.channel FROM perdure_match_paths q WHERE q.channel = of.channel LIMIT 1) IS NULL
        AND (SELECT q.mode FROM channel_subscriptions q WHERE q.channel = of.channel AND q.mode = 'competing' LIMIT 1)
            IS NULL)

-- takeable
-- A lease can be taken: it is free or expired, and the instance has not ended.
(locked_by IS NULL OR lock_expires_at <= {now}) AND status NOT IN ('completed', 'failed', 'cancelled', 'recurred')

-- unchanged
-- Nothing has happened to a stuck instance since it was marked.
(SELECT CASE WHEN i.finished_at IS NULL THEN i.updated_at END
          FROM workflow_instances i WHERE i.instance_id = of.instance_id) <= of.progressed_at

-- announcement
-- Notify of the instances that a query yields, with their workflows, if there are any and `:kind` is given: the payload
-- of `wakeups.first_of`. Never NULL, so that it can be a condition of a statement. PostgreSQL only.
CASE WHEN :kind::text IS NULL OR count(*) = 0 THEN ''
            ELSE pg_notify(:kind, json_strip_nulls(json_build_object(
                   'instance_id', min(instance_id), 'wf_id', min(instance_id),
                   'workflow_name', CASE WHEN count(*) = 1 THEN min(workflow_name) END,
                   'wf_name', CASE WHEN count(*) = 1 THEN min(workflow_name) END,
                   'reason', :reason::text, 'count', NULLIF(count(*), 1)))::text)::text END

-- published
-- Notify of a message, if `:kind` is given. Never NULL, so that it can be a condition of a statement. PostgreSQL only.
CASE WHEN :kind::text IS NULL THEN ''
            ELSE pg_notify(:kind, json_build_object(
                   'channel', :channel::text, 'channel_name', :channel::text, 'message_id', of.id,
                   'ch', :channel::text, 'msg_id', :message_id::text)::text)::text END
