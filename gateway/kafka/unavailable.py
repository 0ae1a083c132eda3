"""What a client is told while the database is away.

Each API answers in its own shape (`@api(…, unavailable=…)`), with an error that its clients take as
"try again":

- CreateTopics, DeleteTopics, CreatePartitions: NOT_CONTROLLER. Java's admin client retries these
  APIs after that code alone (`KafkaAdminClient.handleNotControllerError`), kafka-python too.
- Describe*, AlterConfigs, IncrementalAlterConfigs: REQUEST_TIMED_OUT, which a Kafka broker answers
  when it cannot reach its controller in time; a RetriableException in every client.
- DescribeProducers: NOT_LEADER_OR_FOLLOWER (`DescribeProducersHandler` looks for the leader again);
  DescribeLogDirs: KAFKA_STORAGE_ERROR for the directory; Metadata: LEADER_NOT_AVAILABLE.
- Groups, their offsets and coordinators: COORDINATOR_NOT_AVAILABLE, after which clients look for
  the coordinator again; OffsetFetch: NOT_COORDINATOR, because it is what Java's consumers before
  3.9 take for that there (GroupCoordinatorService.handleOffsetFetchException).
- Produce: NOT_ENOUGH_REPLICAS, which says that the batch is certainly not stored.

Does not know why the database is away, and does not log: the heartbeat does, once.
"""

from typing import Final

from core.errors import Error, Refusal

_MESSAGE: Final = "The database cannot be reached at the moment; try again."

CHANGE_REFUSED: Final = Refusal(Error.NOT_CONTROLLER, _MESSAGE)
NOT_STORED: Final = Refusal(Error.NOT_ENOUGH_REPLICAS, _MESSAGE)
NO_LEADER: Final = Refusal(Error.NOT_LEADER_OR_FOLLOWER, _MESSAGE)
COORDINATOR_AWAY: Final = Refusal(Error.COORDINATOR_NOT_AVAILABLE, _MESSAGE)
TIMED_OUT: Final = Refusal(Error.REQUEST_TIMED_OUT, _MESSAGE)
