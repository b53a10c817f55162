-- draw -> last_sequence
-- Draw the next sequence number of a source. Its row stays locked until the commit: a lower number never appears after
-- a higher one.
INSERT INTO perdure_outbox_sequences (event_source, last_sequence) VALUES (:event_source, 1)
{on_conflict_do_update(event_source)} last_sequence = perdure_outbox_sequences.last_sequence + 1
RETURNING last_sequence

-- draw [mysql]
-- Differs because MySQL has no RETURNING.
INSERT INTO perdure_outbox_sequences (event_source, last_sequence) VALUES (:event_source, 1)
{on_conflict_do_update(event_source)} last_sequence = last_sequence + 1;
SELECT last_sequence FROM perdure_outbox_sequences WHERE event_source = :event_source

-- add -> count
-- Insert an event at the end of its source; nothing if the id is taken.
INSERT INTO outbox_events
       (event_id, event_type, event_source, data_type, event_data, event_data_binary, content_type, created_at, status,
        retry_count, sequence, updated_at, headers)
VALUES (:event_id, :event_type, :event_source, :data_type, :event_data, :event_data_binary, :content_type,
        COALESCE(:created_at, {now}), 'pending', 0, :sequence, {now}, :headers)
{on_conflict_do_nothing(event_id)}

-- content -> event_type, event_source, data_type, event_data, event_data_binary, content_type
-- Return what distinguishes an event from another with the same id.
SELECT event_type, event_source, data_type, event_data, event_data_binary, content_type FROM outbox_events
 WHERE event_id = :event_id

-- ready_at -> ready_at
-- Return from when on a source has something to send.
SELECT ready_at FROM perdure_outbox_sources WHERE event_source = :event_source

-- enter
-- Insert a source with its first event.
INSERT INTO perdure_outbox_sources (event_source, ready_at) VALUES (:event_source, {now})
{on_conflict_do_nothing(event_source)}

-- wake
-- Make a source ready at that time, or now.
UPDATE perdure_outbox_sources SET ready_at = COALESCE(:ready_at, {now}) WHERE event_source = :event_source

-- sleep
-- Record that a source has nothing to send.
UPDATE perdure_outbox_sources SET ready_at = NULL WHERE event_source = :event_source

-- quiet -> event_source
-- Lock the sequences of those of these sources that no transaction is adding to, and return them.
SELECT event_source FROM perdure_outbox_sequences WHERE event_source {any(:sources)} ORDER BY event_source {skip_locked}

-- waiting -> event_source
-- Return whether any source is ready.
SELECT event_source FROM perdure_outbox_sources WHERE ready_at <= {now} LIMIT 1

-- ready -> event_source
-- Return sources with something to send that no other relay has locked, the longest waiting first.
SELECT event_source FROM perdure_outbox_sources WHERE ready_at <= {now}
 ORDER BY ready_at, {ordinal(event_source)} LIMIT :limit {skip_locked}

-- claimed -> event_id
-- Return the claimed events of a source; once it is ready again, their relays are gone.
SELECT event_id FROM outbox_events
 WHERE event_source = :event_source AND status = 'processing' AND sequence > :after

-- hand_back
-- End claims without a result.
UPDATE outbox_events SET status = 'pending', claimed_by = NULL, claim_expires_at = NULL, updated_at = {now}
 WHERE event_id {any(:ids)}

-- first -> event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status,
--   retry_count, last_error, published_at, created_at, sequence, updated_at, headers, backs_off
-- Return a source's next events in order, each with whether it still backs off. They are claimed, so their time of
-- change is now.
SELECT event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status, retry_count,
       last_error, published_at, created_at, sequence, {now}, headers,
       CASE WHEN next_attempt_at > {now} THEN 1 ELSE 0 END
  FROM outbox_events WHERE event_source = :event_source AND status = 'pending' AND sequence > 0
 ORDER BY sequence LIMIT :limit

-- claim
-- Claim events for one relay, for a time.
UPDATE outbox_events
   SET status = 'processing', claimed_by = :relay_id, claim_expires_at = {after(:lease_sec)}, updated_at = :updated_at
 WHERE event_id {any(:ids)}

-- postpone
-- Keep other relays from a source while some of its events are claimed.
UPDATE perdure_outbox_sources SET ready_at = {after(:lease_sec)} WHERE event_source {any(:sources)}

-- hold -> event_source
-- Lock an event's source: relays handle the events of one source one after the other.
SELECT event_source FROM perdure_outbox_sources
 WHERE event_source = (SELECT event_source FROM outbox_events WHERE event_id = :event_id) {for_update}

-- state -> event_source, sequence, status, retry_count, claimed_by
-- Return the state of an own event.
SELECT event_source, sequence, status, retry_count, claimed_by FROM outbox_events
 WHERE event_id = :event_id AND sequence IS NOT NULL

-- states -> event_id, event_source, sequence, status, retry_count, claimed_by
-- Return the states of own events.
SELECT event_id, event_source, sequence, status, retry_count, claimed_by FROM outbox_events
 WHERE event_id {any(:ids)} AND sequence IS NOT NULL

-- hold_all -> event_source
-- Lock many sources, always in the same order.
SELECT event_source FROM perdure_outbox_sources WHERE event_source {any(:sources)} ORDER BY event_source {for_update}

-- sent_all
-- Mark many events as published.
UPDATE outbox_events
   SET status = 'published', published_at = {now}, claimed_by = NULL, claim_expires_at = NULL, next_attempt_at = NULL,
       updated_at = {now}
 WHERE event_id {any(:ids)}

-- sent
-- Mark an event as published.
UPDATE outbox_events
   SET status = 'published', published_at = {now}, claimed_by = NULL, claim_expires_at = NULL, next_attempt_at = NULL,
       updated_at = {now}
 WHERE event_id = :event_id

-- back_off
-- Record a failed attempt and the time of the next.
UPDATE outbox_events
   SET status = 'pending', retry_count = retry_count + 1, last_error = COALESCE(:error, last_error),
       next_attempt_at = {after(:back_off_sec)}, claimed_by = NULL, claim_expires_at = NULL, updated_at = {now}
 WHERE event_id = :event_id

-- park
-- Park an event, stored as `invalid`, because Edda fetches `failed` again.
UPDATE outbox_events
   SET status = 'invalid', last_error = COALESCE(:error, last_error), claimed_by = NULL, claim_expires_at = NULL,
       next_attempt_at = NULL, updated_at = {now}
 WHERE event_id = :event_id

-- ahead -> status, next_attempt_at
-- Return the first claimed and the first waiting event of a source.
SELECT * FROM (SELECT status, next_attempt_at FROM outbox_events
                WHERE event_source = :event_source AND status = 'processing' AND sequence > 0 LIMIT 1) claimed
UNION ALL
SELECT * FROM (SELECT status, next_attempt_at FROM outbox_events
                WHERE event_source = :event_source AND status = 'pending' AND sequence > 0
                ORDER BY sequence LIMIT 1) waiting

-- requeue -> count
-- Put a parked event back at the end of its source. The other states are those of an event that Edda's relay gave up.
UPDATE outbox_events
   SET status = 'pending', sequence = :sequence, retry_count = 0, last_error = NULL, updated_at = {now}
 WHERE event_id = :event_id AND status IN ('invalid', 'failed', 'expired')

-- position -> created_at
-- Return the position of an event in the order of the lists.
SELECT created_at FROM outbox_events WHERE event_id = :event_id

-- list -> event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status,
--   retry_count, last_error, published_at, created_at, sequence, updated_at, headers
-- Return own events, oldest first.
SELECT event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status, retry_count,
       last_error, published_at, created_at, sequence, COALESCE(updated_at, published_at, created_at), headers
  FROM outbox_events
 WHERE sequence IS NOT NULL AND created_at >= :created_at AND (created_at > :created_at OR {ordinal(event_id)} > :after)
 ORDER BY created_at, {ordinal(event_id)} LIMIT :limit

-- list_status -> event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status,
--   retry_count, last_error, published_at, created_at, sequence, updated_at, headers
-- Return own events in one state, by the index of the states.
SELECT event_id, event_type, event_source, event_data, event_data_binary, data_type, content_type, status, retry_count,
       last_error, published_at, created_at, sequence, COALESCE(updated_at, published_at, created_at), headers
  FROM outbox_events {index(idx_outbox_status)}
 WHERE status = :status AND sequence IS NOT NULL
   AND created_at >= :created_at AND (created_at > :created_at OR {ordinal(event_id)} > :after)
 ORDER BY created_at, {ordinal(event_id)} LIMIT :limit

-- old -> event_id, event_source
-- Return own events published long ago. Without a condition on the state: SQLite would use its index, and read them
-- all.
SELECT event_id, event_source FROM outbox_events
 WHERE published_at <= {ago(:age_sec)} AND sequence IS NOT NULL
 ORDER BY published_at LIMIT :limit {skip_locked}

-- delete -> count
-- Remove events.
DELETE {from_index(outbox_events, PRIMARY, status)} WHERE event_id {any(:ids)}

-- unused -> event_source
-- Return which of these sources have no event left; by the index, where NOT EXISTS would read the whole table.
SELECT event_source FROM perdure_outbox_sequences s
 WHERE event_source {any(:sources)}
   AND (SELECT e.status FROM outbox_events e WHERE e.event_source = s.event_source
         ORDER BY e.status, e.sequence LIMIT 1) IS NULL

-- forget
-- Remove sources.
DELETE {from_index(perdure_outbox_sources, PRIMARY, ready_at)} WHERE event_source {any(:sources)};
DELETE {from_index(perdure_outbox_sequences, PRIMARY, last_sequence)} WHERE event_source {any(:sources)}
