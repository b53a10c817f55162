-- outbox -> event_id, text, bytes
-- Return the beginnings of the events of the outbox, where an envelope names its codecs.
SELECT event_id, substr(event_data, 1, :length), substr(event_data_binary, 1, :length)
  FROM outbox_events WHERE event_id > :after ORDER BY event_id LIMIT :limit

-- messages -> id, text, bytes
-- Return the beginnings of messages.
SELECT id, substr(data, 1, :length), substr(data_binary, 1, :length)
  FROM channel_messages WHERE id > :after ORDER BY id LIMIT :limit

-- instances -> instance_id, input, output
-- Return the beginnings of inputs and outputs.
SELECT instance_id, substr(input_data, 1, :length), substr(output_data, 1, :length)
  FROM workflow_instances WHERE instance_id > :after ORDER BY instance_id LIMIT :limit

-- history -> id, text, bytes
-- Return the beginnings of events; that of a message is in the middle, behind the names of its channel.
SELECT id, substr(event_data, 1, :length), substr(event_data_binary, 1, :length)
  FROM workflow_history WHERE id > :after ORDER BY id LIMIT :limit

-- archive -> id, text, bytes
-- Return the beginnings of archived events.
SELECT id, substr(event_data, 1, :length), substr(event_data_binary, 1, :length)
  FROM workflow_history_archive WHERE id > :after ORDER BY id LIMIT :limit

-- compensations -> id, args, nothing
-- Return the beginnings of the arguments of compensations.
SELECT id, substr(args, 1, :length), NULL FROM workflow_compensations WHERE id > :after ORDER BY id LIMIT :limit

-- stuck -> instance_id, reason, nothing
-- Return the beginnings of the reasons of stuck instances.
SELECT instance_id, substr(reason, 1, :length), NULL
  FROM perdure_stuck WHERE instance_id > :after ORDER BY instance_id LIMIT :limit

-- audit -> id, query, reason, outcome
-- Return the beginnings of the texts of the audit.
SELECT id, substr(query, 1, :length), substr(reason, 1, :length), substr(outcome, 1, :length)
  FROM perdure_audit WHERE id > :after ORDER BY id LIMIT :limit

-- views -> name, query, nothing
-- Return the beginnings of saved searches.
SELECT name, substr(query, 1, :length), NULL FROM perdure_views WHERE name > :after ORDER BY name LIMIT :limit
