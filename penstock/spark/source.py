"""The data source `penstock`: what Spark finds under that name.

Knows PySpark's DataSource and what a user may ask of it; must not know how anything is written.
There is no reader: Spark's Kafka source reads from a broker as it is.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.options import OptionError, SinkOptions, parse
from penstock.spark.schema import check_schema
from penstock.spark.sink import PenstockBatchWriter, PenstockStreamWriter


class PenstockDataSource(DataSource):
    """An exactly-once sink: `spark.dataSource.register(PenstockDataSource)`, then
    `frame.writeStream.format("penstock")` and `frame.write.format("penstock").mode("append")`.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> NoReturn:
        raise OptionError("The penstock data source only writes: read with format 'kafka'.")

    def streamWriter(self, schema: StructType, overwrite: bool) -> PenstockStreamWriter:
        # In output mode `complete` each batch is written whole after the last, as to Kafka.
        return PenstockStreamWriter(self._checked(schema, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> PenstockBatchWriter:
        if overwrite:
            raise OptionError("A topic cannot be overwritten: use mode 'append'.")
        return PenstockBatchWriter(self._checked(schema, is_stream=False))

    def _checked(self, schema: StructType, *, is_stream: bool) -> SinkOptions:
        options = parse(self.options, is_stream=is_stream)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_schema(types, has_topic=options.topic is not None)
        return options
